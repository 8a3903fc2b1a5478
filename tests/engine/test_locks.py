"""Who may work on what at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.engine.locks import Extent, Locks, host_wide

HOUSE = Extent((1, 1), frozenset({(1, 0)}))
ROOM = Extent((1, 2), frozenset({(1, 1), (1, 0)}))
GARDEN = Extent((1, 3), frozenset({(1, 0)}))


@pytest.fixture
def locks() -> Locks:
    return Locks(wait_seconds=0.05)


def code_of(error: pytest.ExceptionInfo[FluxError]) -> Code:
    return error.value.code


def test_roots_overlap_when_one_lies_in_the_other() -> None:
    assert HOUSE.overlaps(ROOM)
    assert ROOM.overlaps(HOUSE)
    assert HOUSE.overlaps(HOUSE)
    assert not HOUSE.overlaps(GARDEN)


def test_a_second_request_for_a_changeset_is_refused_at_once(locks: Locks) -> None:
    with locks.changeset("cs1"):
        with pytest.raises(FluxError) as caught, locks.changeset("cs1"):
            pass
        assert code_of(caught) is Code.CONFLICT
        assert not locks.try_changeset("cs1")
        with locks.changeset("cs2"):
            pass
    with locks.changeset("cs1"):
        pass


def test_a_changeset_is_free_again_after_an_error(locks: Locks) -> None:
    with pytest.raises(KeyError), locks.changeset("cs1"):
        raise KeyError
    assert locks.try_changeset("cs1")


@pytest.mark.parametrize(
    ("held", "asked", "other", "refused"),
    [
        (False, False, HOUSE, False),
        (False, True, HOUSE, True),
        (True, False, HOUSE, True),
        (True, True, HOUSE, True),
        (True, True, ROOM, True),
        (True, True, GARDEN, False),
        (False, False, ROOM, False),
        (False, True, ROOM, True),
    ],
)
def test_a_root_is_shared_or_held_alone(locks: Locks, held: bool, asked: bool, other: Extent, refused: bool) -> None:
    with locks.root(HOUSE, exclusive=held):
        if not refused:
            with locks.root(other, exclusive=asked):
                return
        with pytest.raises(FluxError) as caught, locks.root(other, exclusive=asked):
            pass
        assert code_of(caught) is Code.UNAVAILABLE
    with locks.root(other, exclusive=asked):
        pass


def test_who_waits_gets_it_and_who_comes_later_does_not_overtake() -> None:
    locks = Locks(wait_seconds=60)
    order: list[str] = []
    waiting = threading.Event()

    def alone() -> None:
        waiting.set()
        with locks.root(HOUSE, exclusive=True):
            order.append("alone")

    def shared() -> None:
        with locks.root(HOUSE, exclusive=False):
            order.append("shared")

    with locks.root(HOUSE, exclusive=False):
        first = threading.Thread(target=alone)
        first.start()
        waiting.wait(30)
        while len(locks._claims) < 2:
            threading.Event().wait(0.001)
        second = threading.Thread(target=shared)
        second.start()
        while len(locks._claims) < 3:
            threading.Event().wait(0.001)
        assert order == []
    first.join(30)
    second.join(30)
    assert order == ["alone", "shared"]


def test_deleting_ends_the_users_and_keeps_new_ones_out() -> None:
    locks = Locks(wait_seconds=60)
    inside, end = threading.Event(), threading.Event()

    def use() -> None:
        with locks.sandbox("sb1"):
            inside.set()
            end.wait(30)

    user = threading.Thread(target=use)
    user.start()
    inside.wait(30)
    with locks.deleting("sb1", end.set):
        assert not user.is_alive() or end.is_set()
        with pytest.raises(FluxError) as caught, locks.sandbox("sb1"):
            pass
        assert code_of(caught) is Code.NOT_FOUND
        with pytest.raises(FluxError) as caught, locks.deleting("sb1", lambda: None):
            pass
        assert code_of(caught) is Code.NOT_FOUND
        with locks.sandbox("sb2"):
            pass
    user.join(30)


def test_two_state_directories_do_not_write_one_workspace_at_once(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    with host_wide(first, 0):
        with pytest.raises(FluxError) as caught, host_wide(second, 0):
            pass
        assert code_of(caught) is Code.UNAVAILABLE
    with host_wide(second, 0):
        pass
    os.close(first)
    os.close(second)
