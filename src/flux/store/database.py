"""The SQL database of a state directory: SQLite in WAL mode, durable at every commit."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import is_utf8
from flux.failpoints import Point, reach
from flux.ports.clock import Clock

Value: TypeAlias = str | int | float | bytes | None

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_SECONDS = 10.0
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF")
_SPACE = ("disk is full", "disk I/O error")
_DAMAGED = ("malformed", "not a database")


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Now, on every clock: wall-clock seconds since the epoch, which boot, nanoseconds since it."""

    wall: float
    boot_id: str
    boot_ns: int

    def after(self, boot_id: str, boot_ns: int, wall: float) -> bool:
        """Tell whether a time is over: by the boot clock within its own boot, by the wall clock in a later one."""
        return boot_ns <= self.boot_ns if boot_id == self.boot_id else wall <= self.wall


class Transaction:
    """One transaction. Helpers take it and never commit; ``now`` is the same for all of it (wall-clock seconds)."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self.now = now

    def execute(self, statement: str, parameters: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(statement, parameters).rowcount

    def one(self, query: str, parameters: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """Return the first row."""
        row: tuple[Any, ...] | None = self._connection.execute(query, _comparable(parameters)).fetchone()
        return row

    def every(self, query: str, parameters: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return self._connection.execute(query, _comparable(parameters)).fetchall()


def _comparable(parameters: Sequence[Value]) -> list[Value]:
    """Return what a query compares with. Text that is not UTF-8 was never stored: as bytes it equals no text."""
    return [
        value.encode("utf-8", "surrogatepass") if isinstance(value, str) and not is_utf8(value) else value
        for value in parameters
    ]


class Database:
    """One connection, used by one thread at a time; a transaction lasts milliseconds.

    Args:
        path: the database file; made (0600) if absent.
        clock: gives each transaction its ``now``.

    Raises:
        FluxError: ``invalid`` if a newer Flux made the database, ``unavailable`` or ``exhausted`` if it cannot be used.
    """

    def __init__(self, path: str, clock: Clock, migrations: Path = MIGRATIONS) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        with _foreign_errors():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in _PRAGMAS:
                    self._connection.execute(f"PRAGMA {pragma}")
                self.created = _migrate(self._connection, path, migrations)
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a writing transaction; it commits at the end of the block and rolls back if the block raises."""
        with self._lock, _foreign_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._connection, self._clock.wall())
                reach(Point.DATABASE_COMMIT)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that sees one state of the database and changes nothing."""
        with self._lock, _foreign_errors():
            self._connection.execute("BEGIN")
            try:
                yield Transaction(self._connection, self._clock.wall())
            finally:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._lock:
            self._connection.close()


def _migrate(connection: sqlite3.Connection, path: str, migrations: Path) -> bool:
    """Bring the schema up to date; return whether the database was empty before."""
    (held,) = connection.execute("PRAGMA user_version").fetchone()
    scripts = sorted((int(entry.name.split("_")[0]), entry) for entry in migrations.glob("*.sql"))
    newest = scripts[-1][0]
    if held > newest:
        raise FluxError(
            Code.INVALID,
            f"cannot use {path}: a newer Flux wrote it (schema {held}, this one knows {newest}); "
            "update Flux, or choose another state directory",
            {"schema": held, "known": newest},
        )
    for number, script in scripts:
        if number > held:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{script.read_text()}\nPRAGMA user_version = {number};\nCOMMIT;"
            )
    return bool(held == 0)


@contextmanager
def _foreign_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.Error, OSError) as error:
        text = str(error)
        if any(mark in text for mark in _SPACE):
            raise FluxError(Code.EXHAUSTED, f"cannot write the database: {text}; free some space") from error
        if any(mark in text for mark in _DAMAGED):
            raise FluxError(
                Code.INTERNAL,
                f"cannot use the database: {text}: it is damaged and was left as it is; stop Flux, put a copy of the "
                "whole state directory in its place, or start with a new one",
                {"reason": "DatabaseDamaged"},
            ) from error
        raise FluxError(Code.UNAVAILABLE, f"cannot use the database: {text}; try again") from error
