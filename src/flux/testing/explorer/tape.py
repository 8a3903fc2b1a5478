"""What an operation was told by the world, step by step: played again, it brings its generator back to where it was.

A generator cannot be copied. All that one does goes through a ``Tape``, so that a new one of the same operation, played
the same answers, stands at the same step and has changed nothing a second time.
"""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from flux.core.errors import Code, FluxError
from flux.ports.clock import Clock
from flux.store.database import Database, Transaction, Value
from flux.testing.clock import FakeClock

T = TypeVar("T")


class Forgotten(BaseException):
    """An operation that a crash has ended, or that was taken back, tries to act."""


class Mode(Enum):
    """What a call through a tape does: act and be noted, be answered from the notes, or be refused."""

    LIVE = "live"
    REPLAY = "replay"
    DEAD = "dead"


class Fault(Enum):
    """What is to go wrong in the step that is made next."""

    EFFECT = "effect"
    COMMIT = "commit"


class Entry:
    """One answer: a value, or an error that was raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value = value
        self.error = error

    def give(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        return list(self.value) if isinstance(self.value, list) else self.value


class Tape:
    """The notes of whichever task is running; without one, calls act and nobody notes them."""

    def __init__(self) -> None:
        self.mode = Mode.LIVE
        self.entries: list[Entry] | None = None
        self.position = 0
        self.fault: Fault | None = None
        self._inside = False

    def call(self, action: Callable[[], T]) -> T:
        """Act and note the answer, or give the one that was noted."""
        if self.mode is Mode.DEAD:
            raise Forgotten
        if self.mode is Mode.REPLAY:
            return cast(T, self._next())
        if self._inside:  # only the outermost answer is noted
            return action()
        self._inside = True
        try:
            value = action()
        except Exception as error:
            self._note(Entry(error=error))
            raise
        finally:
            self._inside = False
        self._note(Entry(value))
        return value

    def effect(self, action: Callable[[], T]) -> T:
        """``call`` for a step outside the database, which fails where ``Fault.EFFECT`` is armed."""
        if self.mode is Mode.LIVE and self.fault is Fault.EFFECT:
            self.fault = None
            return cast(T, self.call(_failing))
        return self.call(action)

    def _next(self) -> Any:
        assert self.entries is not None
        if self.position >= len(self.entries):
            raise AssertionError("an operation asked more when it was played again: it is not deterministic")
        entry = self.entries[self.position]
        self.position += 1
        return entry.give()

    def _note(self, entry: Entry) -> None:
        if self.entries is not None:
            self.entries.append(entry)


def _failing() -> Any:
    raise FluxError(Code.EXHAUSTED, "cannot go on: the explorer lets this step fail", {"reason": "Injected"})


class Taped:
    """Stands for ``target``; every method that is called goes through the tape as an effect."""

    def __init__(self, target: object, tape: Tape) -> None:
        self._target = target
        self._tape = tape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._target, name)
        tape = self._tape
        return lambda *arguments, **named: tape.effect(lambda: method(*arguments, **named))


class TapedClock:
    """Implements ``ports.clock.Clock``; what it said is said again to an operation that is played again."""

    def __init__(self, clock: Clock, tape: Tape) -> None:
        self._clock = clock
        self._tape = tape

    def wall(self) -> float:
        return self._tape.call(self._clock.wall)

    def boot_ns(self) -> int:
        return self._tape.call(self._clock.boot_ns)

    def boot_id(self) -> str:
        return self._tape.call(self._clock.boot_id)


class Counter:
    """Makes identities: one name after the other, so that the same schedule gives the same ones."""

    def __init__(self, prefix: str, tape: Tape) -> None:
        self._prefix = prefix
        self._tape = tape
        self.count = 0

    def __call__(self) -> str:
        return self._tape.call(self._next)

    def _next(self) -> str:
        self.count += 1
        return f"{self._prefix}{self.count}"


class _TapedTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection, now: float, tape: Tape) -> None:
        super().__init__(connection, now)
        self._tape = tape

    def execute(self, statement: str, parameters: Sequence[Value] = ()) -> int:
        held = super().execute
        return self._tape.call(lambda: held(statement, parameters))

    def one(self, query: str, parameters: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        held = super().one
        return self._tape.call(lambda: held(query, parameters))

    def every(self, query: str, parameters: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        held = super().every
        return self._tape.call(lambda: held(query, parameters))


class ModelDatabase(Database):
    """The real schema in memory. Transactions are savepoints, so that whole branches of a search can be taken back."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, tape: Tape) -> None:
        self._connection = connection
        self._clock = clock
        self._tape = tape
        self.created = False

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a writing transaction; its commit fails where ``Fault.COMMIT`` is armed."""
        now = self._tape.call(self._clock.wall)
        live = self._tape.mode is Mode.LIVE
        if live:
            self._connection.execute("SAVEPOINT working")
        try:
            yield _TapedTransaction(self._connection, now, self._tape)
            self._tape.call(self._commit)
        except BaseException:
            if live:
                self._connection.execute("ROLLBACK TO working")
                self._connection.execute("RELEASE working")
            raise
        if live:
            self._connection.execute("RELEASE working")

    def _commit(self) -> None:
        if self._tape.fault is Fault.COMMIT:
            self._tape.fault = None
            raise FluxError(Code.UNAVAILABLE, "cannot use the database: the explorer lets this commit fail")

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that changes nothing."""
        yield _TapedTransaction(self._connection, self._tape.call(self._clock.wall), self._tape)

    def close(self) -> None:
        """Do nothing: the world owns the connection."""


@functools.cache
def _empty(migrations: Path) -> bytes:
    """Return a new database as its migrations make it."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/empty.db"
        Database(path, FakeClock(), migrations).close()
        source = sqlite3.connect(path)
        source.execute("PRAGMA journal_mode=DELETE")  # memory has no write-ahead log
        content: bytes = source.serialize()
        source.close()
    return content


def in_memory(migrations: Path) -> sqlite3.Connection:
    """Return an empty database of that schema in memory, inside a transaction that is never committed."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(_empty(migrations))
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("SAVEPOINT world")
    return connection
