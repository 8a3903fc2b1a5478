"""Expiry and retention by both clocks (spec: speculation)."""

from __future__ import annotations

import os

import pytest

from flux.core.changeset import State
from flux.core.errors import Code
from flux.core.sandbox import Sandbox
from tests.engine.kit import ADMIN, Kit, refused


@pytest.mark.parametrize(
    ("asked", "given"), [(None, 3600), (0, 1), (-5, 1), (1, 1), (86_400, 86_400), (86_401, 86_400), (10**9, 86_400)]
)
def test_the_time_is_clamped(kit: Kit, sandbox: Sandbox, asked: int | None, given: int) -> None:
    made = kit.speculate(sandbox, "true", ttl_seconds=asked).changeset
    assert made.expires_at - made.created_at == given


@pytest.mark.parametrize("approved", [False, True])
def test_it_expires_on_the_second_whatever_the_wall_clock_says(kit: Kit, sandbox: Sandbox, approved: bool) -> None:
    made = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    if approved:
        kit.approve(made)
    kit.clock.set_wall(kit.clock.wall() + 10_000)
    kit.clock.advance(59.999)
    assert kit.state_of(made) is (State.APPROVED if approved else State.PENDING)
    kit.clock.set_wall(0)
    kit.clock.advance(0.001)
    assert kit.state_of(made) is State.EXPIRED
    assert kit.events(made.changeset.id)[-1] == "changeset.expired"


def test_across_boots_the_wall_clock_counts(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    kit.clock.reboot(down_seconds=59)
    kit.reopen()
    assert kit.state_of(made) is State.PENDING
    kit.clock.advance(1)
    assert kit.state_of(made) is State.EXPIRED


def test_expired_stays_expired_when_the_clock_is_set_back(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    kit.clock.reboot(down_seconds=100)
    assert kit.state_of(made) is State.EXPIRED
    kit.clock.set_wall(0)
    kit.clock.reboot()
    kit.reopen()
    assert kit.state_of(made) is State.EXPIRED


def test_a_decision_looks_at_the_time_itself(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    kit.clock.advance(60)
    with refused(Code.EXPIRED):
        kit.approve(made)
    assert kit.state_of(made) is State.EXPIRED
    approved = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    kit.approve(approved)
    kit.clock.advance(60)
    with refused(Code.EXPIRED):
        kit.apply(approved)
    assert list(kit.work.iterdir()) == []


def test_a_speculation_sweeps(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f", ttl_seconds=60)
    kit.clock.advance(60)
    kit.speculate(sandbox, "true")
    assert kit.events(made.changeset.id)[-1] == "changeset.expired"


def test_finished_changesets_are_deleted_after_a_day(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.land(sandbox, "echo x > f")
    kit.clock.advance(86_399)
    assert kit.state_of(made) is State.APPLIED
    kit.clock.advance(1)
    with refused(Code.NOT_FOUND):
        kit.engine.get_changeset(ADMIN, sandbox.id, made.changeset.id)
    assert os.listdir(kit.state / "changesets") == []
    assert kit.engine.list_changesets(ADMIN, sandbox.id).items == []
    assert (kit.work / "f").read_text() == "x\n"
