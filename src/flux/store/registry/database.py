"""The registry's database, whichever it is: transactions with the same statements on SQLite and PostgreSQL (§9).

Statements are written with ``?`` and use only what both know. Integers have 64 bits in both, times are seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from flux.ports.clock import Clock
from flux.store.database import Database, Transaction, Value

MIGRATIONS = Path(__file__).parent / "migrations"
DATABASE = "control.db"


class Duplicate(Exception):
    """A row with the same unique value exists; the transaction is over."""


class RegistryTransaction(Protocol):
    """One transaction. Helpers take it and never commit; ``now`` is the same for all of it (wall-clock seconds)."""

    now: float

    def execute(self, statement: str, parameters: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed. Raises ``Duplicate``."""
        ...

    def one(self, query: str, parameters: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """Return the first row."""
        ...

    def locked(self, query: str, parameters: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """Return the first row of one table and keep all other transactions from changing it until this one ends."""
        ...

    def every(self, query: str, parameters: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Return all rows."""
        ...


class RegistryDatabase(Protocol):
    """Opens transactions. Errors but ``Duplicate`` are ``FluxError``: ``unavailable``, ``exhausted``, ``invalid``."""

    #: Whether no other process can be at work on it.
    exclusive: bool

    def transaction(self) -> AbstractContextManager[RegistryTransaction]:
        """Open a writing transaction; it commits, durably, at the end of the block and rolls back if that raises."""
        ...

    def reading(self) -> AbstractContextManager[RegistryTransaction]:
        """Open a transaction that changes nothing."""
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


class _SqliteTransaction:
    """A writing transaction of SQLite has the whole database to itself, so that locking a row is reading it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.now = tx.now
        self.one = self.locked = tx.one
        self.every = tx.every

    def execute(self, statement: str, parameters: Sequence[Value] = ()) -> int:
        """Run a statement."""
        try:
            return self._tx.execute(statement, parameters)
        except sqlite3.IntegrityError as error:
            raise Duplicate(str(error)) from error


class SqliteRegistry:
    """The registry in one file, of one process.

    Args:
        path: the database file; made (0600) if absent.
        clock: gives each transaction its ``now``.
    """

    exclusive = True

    def __init__(self, path: str, clock: Clock) -> None:
        self._database = Database(path, clock, MIGRATIONS)

    @contextmanager
    def transaction(self) -> Iterator[RegistryTransaction]:
        """Open a writing transaction."""
        with self._database.transaction() as tx:
            yield _SqliteTransaction(tx)

    @contextmanager
    def reading(self) -> Iterator[RegistryTransaction]:
        """Open a transaction that changes nothing."""
        with self._database.reading() as tx:
            yield _SqliteTransaction(tx)

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def open_registry(place: str, clock: Clock) -> RegistryDatabase:
    """Open the registry at a ``postgresql://`` URL, or in a file."""
    if place.startswith(("postgresql://", "postgres://")):
        from flux.store.registry.postgres import PostgresRegistry

        return PostgresRegistry(place, clock)
    return SqliteRegistry(place, clock)
