"""Things made ahead, with numbers for things."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from flux.core.errors import Code, FluxError
from flux.network import ahead
from flux.network.ahead import Ahead


class Works:
    """Makes numbers, and waits for what others see of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.made: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int]] = []
        self.fails = False
        self.ahead: Ahead[str, tuple[str, int]] = Ahead(2, make=self.make, end=self.end)

    def make(self, request: str) -> tuple[str, int]:
        with self.changed:
            self.changed.notify_all()
            if self.fails:
                self.fails = False
                raise FluxError(Code.UNAVAILABLE, "cannot make one")
            self.made.append((request, len(self.made)))
            return self.made[-1]

    def end(self, doomed: Sequence[tuple[str, int]]) -> None:
        with self.changed:
            self.ended.extend(doomed)
            self.changed.notify_all()

    def wait(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, 30)

    def taken(self, request: str) -> tuple[str, int]:
        """Take one as soon as there is one."""
        while (found := self.ahead.take(request)) is None:
            pass
        return found


@pytest.fixture
def works() -> Iterator[Works]:
    made = Works()
    yield made
    made.ahead.close()


def test_nothing_is_made_before_the_first_question(works: Works) -> None:
    assert works.made == []
    assert works.ahead.take("a") is None
    works.wait(lambda: len(works.made) == 2)


def test_nobody_gets_what_another_has(works: Works) -> None:
    assert len({works.taken("a") for _ in range(10)}) == 10


def test_what_is_ready_for_another_request_is_ended(works: Works) -> None:
    works.taken("a")
    assert works.taken("b")[0] == "b"
    works.ahead.close()
    assert set(works.made) == {*works.ended, *(one for one in works.made if one not in works.ended)}
    assert len([one for one in works.made if one not in works.ended]) == 2


def test_after_a_failure_the_next_question_tries_again(works: Works) -> None:
    works.fails = True
    assert works.ahead.take("a") is None
    works.wait(lambda: not works.fails)
    assert works.taken("a") == ("a", 0)


def test_all_that_nobody_has_is_ended_with_it(works: Works) -> None:
    mine = works.taken("a")
    assert works.ahead.give(mine)
    works.ahead.close()
    assert sorted(works.ended) == sorted(works.made)
    assert not works.ahead.give(("late", 0))
    assert works.ahead.take("a") is None


def test_what_nobody_asks_for_any_more_is_ended(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_IDLE_SECONDS", 0.01)
    works.ahead.take("a")
    works.wait(lambda: len(works.ended) == 2)
    assert sorted(works.ended) == sorted(works.made)
