"""One operation under way: a generator, what it was given at each step, and where it stands."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator
from enum import Enum
from types import FrameType
from typing import Any, TypeAlias

import msgspec

from flux.core.errors import FluxError
from flux.testing.explorer.tape import Entry, Mode, Tape

Operation: TypeAlias = Generator[Any, Any, Any]

#: Points in time: the clock's part of a state is compared on its own.
_TIMES = re.compile(r"\b1[67]\d{8}(\.\d+)?\b")
_PLAIN = (str, int, float, bytes, bool, type(None), Enum, msgspec.Struct)


class Place(msgspec.Struct, frozen=True):
    """Where a task stands.

    ``at``: what it yielded last. ``outcome``: its value or error once it is over. ``waits``: the number of the call
    whose answer it waits for. ``polled``: how many steps its party had made when it last found that it must wait.
    ``due``: until when it naps. ``shape``: code positions and local values, to tell states apart.
    """

    given: int = 0
    noted: int = 0
    at: Any = None
    outcome: Entry | None = None
    waits: int | None = None
    polled: int | None = None
    due: float | None = None
    dead: bool = False
    shape: str = ""

    @property
    def is_over(self) -> bool:
        """Tell whether nothing will come of it any more."""
        return self.dead or self.outcome is not None


class Task:
    """An operation of one party. ``call``: the number of the call that it serves, if it serves one."""

    def __init__(
        self, number: int, party: str, name: str, make: Callable[[], Operation], tape: Tape, call: int | None = None
    ) -> None:
        self.number = number
        self.party = party
        self.name = name
        self.call = call
        self.place = Place()
        self._make = make
        self._tape = tape
        self._steps: Operation | None = None
        self._fed = 0
        self._given: list[Entry] = []
        self._entries: list[Entry] = []

    def __str__(self) -> str:
        return f"{self.party}.{self.name}#{self.number}"

    def resume(self, given: Entry) -> None:
        """Make one step, live: to the next yield, or to the end."""
        steps = self._brought_back()
        self._given.append(given)
        self._fed += 1
        self._tape.mode, self._tape.entries = Mode.LIVE, self._entries
        at: Any = None
        outcome: Entry | None = None
        try:
            at = _feed(steps, given)
        except StopIteration as stop:
            outcome = Entry(stop.value)
        except Exception as error:
            outcome = Entry(error=error)
        finally:
            self._tape.entries, self._tape.fault = None, None
        self.place = Place(
            given=len(self._given), noted=len(self._entries), at=at, outcome=outcome, shape=_shape(steps, at, outcome)
        )

    def _brought_back(self) -> Operation:
        """Return the generator at ``place``: the one at hand, or a new one that is played what the old one saw."""
        if self._steps is not None and self._fed == self.place.given:
            return self._steps
        self.forget()
        del self._given[self.place.given :]
        del self._entries[self.place.noted :]
        steps = self._make()
        self._tape.mode, self._tape.entries, self._tape.position = Mode.REPLAY, self._entries, 0
        for given in self._given:
            _feed(steps, given)
        if self._tape.position != len(self._entries):
            raise AssertionError(f"{self} asked less when it was played again: it is not deterministic")
        self._steps, self._fed = steps, len(self._given)
        return steps

    def forget(self) -> None:
        """Drop the generator; nothing that it still does, ``finally`` included, reaches the world."""
        if self._steps is None:
            return
        held = self._tape.mode
        self._tape.mode = Mode.DEAD
        with contextlib.suppress(BaseException):
            self._steps.close()
        self._tape.mode = held
        self._steps = None


def _feed(steps: Operation, given: Entry) -> Any:
    if given.error is not None:
        return steps.throw(given.error.with_traceback(None))
    return steps.send(given.value)


def _shape(steps: Operation, at: Any, outcome: Entry | None) -> str:
    if outcome is not None:
        return f"over:{describe(outcome)}"
    parts = [_plain(at)]
    inner: Any = steps
    while inner is not None:
        frame: FrameType | None = getattr(inner, "gi_frame", None)
        if frame is not None:
            held = ",".join(f"{name}={_plain(value)}" for name, value in frame.f_locals.items())
            parts.append(f"{frame.f_code.co_qualname}@{frame.f_lasti}({held})")
        inner = getattr(inner, "gi_yieldfrom", None)
    return timeless("|".join(parts))


def timeless(text: str) -> str:
    """Return a text without its points in time."""
    return _TIMES.sub("T", text)


def describe(entry: Entry) -> str:
    """Return an answer as text."""
    if entry.error is None:
        return _plain(entry.value)
    if isinstance(entry.error, FluxError):
        return f"{entry.error.code.value}:{entry.error.details.get('reason', entry.error.message)}"
    return f"{type(entry.error).__name__}:{entry.error}"


def _plain(value: object) -> str:
    if isinstance(value, FluxError):
        return describe(Entry(error=value))
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list | set | frozenset):
        return f"[{','.join(_plain(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_plain(item)}' for key, item in value.items())}}}"
    return type(value).__name__
