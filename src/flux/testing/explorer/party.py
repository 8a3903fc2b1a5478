"""What can crash: a node or the control plane. Its database and its disk outlive it, its operations do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Protocol

from flux.testing.explorer.task import Operation, timeless


class Party(Protocol):
    """One process with what it leaves on disk."""

    name: str
    connection: sqlite3.Connection

    def changes(self) -> int:
        """Return a number that grows with every change which somebody of the party may wait for."""
        ...

    def serve(self, request: Any) -> tuple[str, Callable[[], Operation]]:
        """Return the name and the maker of the operation that serves a request."""
        ...

    def recover(self) -> list[tuple[str, Callable[[], Operation]]]:
        """Return the operations that a new process starts with, one after the other, before it serves anybody."""
        ...

    def crash(self, *, host: bool) -> None:
        """Forget what was in memory; with ``host``, everything that ran on the machine ended too."""
        ...

    def contents(self) -> str:
        """Return everything that outlives the process, as text that is equal where the contents are."""
        ...

    def memory(self) -> str:
        """Return what the process has in memory besides its operations."""
        ...

    def mark(self) -> Any:
        """Return what ``back_to`` needs, besides the database."""
        ...

    def back_to(self, mark: Any) -> None:
        """Take back everything, besides the database, since ``mark``."""
        ...


def dump(connection: sqlite3.Connection, ignored: frozenset[str] = frozenset()) -> str:
    """Return the contents of all tables, sorted, without points in time."""
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if name not in ignored and not name.startswith("sqlite_")
    ]
    parts = []
    for table in tables:
        rows = sorted(map(repr, connection.execute(f'SELECT * FROM "{table}"').fetchall()))
        if rows:
            parts.append(f"{table}:{';'.join(rows)}")
    return timeless("\n".join(parts))
