"""Who works on which sandbox in this process: what tells work in progress from work that was abandoned.

A row in flight that nobody works on was abandoned, by a crash or by a failure that could not be undone; whoever takes
it drives it on or back. Work is taken inside the transaction that puts the row in flight, so that nobody can take a
row for abandoned between the two; it ends by itself with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec


class Work(StrEnum):
    """What somebody does with a sandbox. Who sweeps up after one that has no row keeps activations out meanwhile."""

    TRANSITION = "transition"
    SWEEP = "sweep"


class Held(msgspec.Struct, frozen=True):
    """One operation's work on one sandbox."""

    number: int
    sandbox_id: str
    work: Work


class DeskState(msgspec.Struct, frozen=True):
    """Everything that a desk knows. ``uses``: how many make or restore artifacts; ``collecting``: nobody may."""

    held: tuple[Held, ...] = ()
    uses: int = 0
    collecting: bool = False
    next: int = 1


class Desk:
    """The work that is going on, as one value that is replaced. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._changes = 0
        self.state = DeskState()

    def take(self, sandbox_id: str, work: Work) -> int:
        """Begin work on a sandbox; return the number that ``drop`` ends it by. Asked inside a transaction."""
        with self._condition:
            state = self.state
            held = Held(state.next, sandbox_id, work)
            self.state = msgspec.structs.replace(state, held=(*state.held, held), next=state.next + 1)
            return held.number

    def drop(self, number: int) -> None:
        """End work."""
        with self._condition:
            held = tuple(one for one in self.state.held if one.number != number)
            self.state = msgspec.structs.replace(self.state, held=held)
        self.changed()

    def is_held(self, sandbox_id: str) -> bool:
        """Tell whether anybody works on a sandbox."""
        return any(one.sandbox_id == sandbox_id for one in self.state.held)

    def is_swept(self, sandbox_id: str) -> bool:
        """Tell whether what a sandbox without a row left behind is being removed."""
        return any(one.sandbox_id == sandbox_id and one.work is Work.SWEEP for one in self.state.held)

    def is_alone(self, number: int, sandbox_id: str) -> bool:
        """Tell whether nobody but ``number`` works on the sandbox."""
        return all(one.number == number for one in self.state.held if one.sandbox_id == sandbox_id)

    def begin_use(self) -> bool:
        """Ask to make or restore artifacts, of which none is collected then; ``False``: wait and ask again."""
        with self._condition:
            if self.state.collecting:
                return False
            self.state = msgspec.structs.replace(self.state, uses=self.state.uses + 1)
            return True

    def end_use(self) -> None:
        """Give up a granted use."""
        with self._condition:
            self.state = msgspec.structs.replace(self.state, uses=self.state.uses - 1)

    def begin_collecting(self) -> bool:
        """Ask to have the artifacts alone; ``False`` if somebody uses them now: come back later."""
        with self._condition:
            if self.state.collecting or self.state.uses:
                return False
            self.state = msgspec.structs.replace(self.state, collecting=True)
            return True

    def end_collecting(self) -> None:
        """Give up the artifacts."""
        with self._condition:
            self.state = msgspec.structs.replace(self.state, collecting=False)
        self.changed()

    @property
    def changes(self) -> int:
        """How often something has changed that somebody may wait for."""
        with self._condition:
            return self._changes

    def changed(self) -> None:
        """Wake those who wait."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until something has changed since ``changes`` was ``seen``, but not for longer than ``seconds``."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes != seen, seconds)


class Holding:
    """One operation's work on one sandbox."""

    def __init__(self, desk: Desk, sandbox_id: str, work: Work) -> None:
        self._desk = desk
        self._sandbox_id = sandbox_id
        self._work = work
        self._number: int | None = None

    def take(self) -> None:
        """Begin, inside the transaction that puts the row in flight."""
        if self._number is None:
            self._number = self._desk.take(self._sandbox_id, self._work)

    def is_alone(self) -> bool:
        """Tell whether nobody else works on the sandbox any more."""
        return self._desk.is_alone(self._number or 0, self._sandbox_id)

    def drop(self) -> None:
        """End it. Idempotent."""
        if self._number is not None:
            number, self._number = self._number, None
            self._desk.drop(number)


@contextmanager
def holding(desk: Desk, sandbox_id: str, work: Work = Work.TRANSITION) -> Iterator[Holding]:
    """Give a block its work on a sandbox, which ends with the block at the latest."""
    mine = Holding(desk, sandbox_id, work)
    try:
        yield mine
    finally:
        mine.drop()


@contextmanager
def using_artifacts(desk: Desk) -> Iterator[Use]:
    """Give a block the right to make or restore artifacts, once its ``begin`` was granted."""
    use = Use(desk)
    try:
        yield use
    finally:
        use.end()


class Use:
    """The right to make or restore artifacts."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._granted = False

    def begin(self) -> bool:
        """Ask for it; ``False`` while artifacts are being collected: wait and ask again."""
        self._granted = self._granted or self._desk.begin_use()
        return self._granted

    def end(self) -> None:
        """Give it back. Idempotent."""
        if self._granted:
            self._granted = False
            self._desk.end_use()
