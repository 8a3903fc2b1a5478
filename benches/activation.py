"""What one activation costs in transactions, of control plane and node together, beside four bare ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benches import measure
from benches.fleet import counted, fleet

ROUNDS = 60
BARE_TRANSACTIONS = 4
LIMIT = 2.5
ROW_BYTES = 1000


def bare_transactions(connection: sqlite3.Connection) -> None:
    """Commit four small transactions, each durable when it returns."""
    for _ in range(BARE_TRANSACTIONS):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows (text) VALUES (?)", ("x" * ROW_BYTES,))
        connection.execute("COMMIT")


def opened(place: Path) -> sqlite3.Connection:
    """Return a database as Flux has its own."""
    connection = sqlite3.connect(place / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")
    return connection


def run() -> list[measure.Row]:
    """Return the ratio of times, and the number of commits."""
    with measure.folder() as place, fleet(place / "fleet") as one:
        connection = opened(place)
        sandbox = one.create()
        one.pause(sandbox)
        with counted() as count:
            one.connect(sandbox)
        wakes = []
        bare = []
        for _ in range(ROUNDS):
            one.pause(sandbox)
            one.plane.sweep()  # as a daemon does now and then: the node forgets what the registry has taken note of
            wakes.append(measure.timed(lambda: one.connect(sandbox)))
            bare.append(measure.timed(lambda: bare_transactions(connection)))
        connection.close()
    wake, reference = sorted(wakes)[ROUNDS // 2], sorted(bare)[ROUNDS // 2]
    return [
        measure.Row("bookkeeping of one activation / four durable transactions", wake, reference, "ms", "ratio", LIMIT),
        measure.Row(
            "transactions that one activation commits; beside them the four",
            count[0],
            BARE_TRANSACTIONS,
            "commits",
            "absolute",
            BARE_TRANSACTIONS * LIMIT,
        ),
    ]
