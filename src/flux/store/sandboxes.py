"""The table of sandboxes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.sandbox import Sandbox, SandboxState
from flux.store.database import Moment, Transaction

_decoder = msgspec.json.Decoder(Sandbox)


def insert(tx: Transaction, sandbox: Sandbox) -> None:
    """Add a sandbox.

    Raises:
        FluxError: ``already_exists`` if its name is taken.
    """
    try:
        tx.execute(
            "INSERT INTO sandboxes (id, name, owner, state, expires_at, boot_id, expires_boot_ns, record)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                sandbox.id,
                sandbox.name,
                sandbox.owner,
                sandbox.state.value,
                sandbox.expires_at,
                sandbox.boot_id,
                sandbox.expires_boot_ns,
                _encode(sandbox),
            ),
        )
    except sqlite3.IntegrityError as error:
        raise FluxError(
            Code.ALREADY_EXISTS,
            f"cannot create the sandbox: the name {sandbox.name!r} is taken; choose another",
            {"field": "name", "name": sandbox.name},
        ) from error


def update(tx: Transaction, sandbox: Sandbox) -> None:
    """Replace a sandbox's record; its name becomes free once it is being deleted."""
    name = None if sandbox.state is SandboxState.DELETING else sandbox.name
    tx.execute(
        "UPDATE sandboxes SET name = ?, state = ?, record = ? WHERE id = ?",
        (name, sandbox.state.value, _encode(sandbox), sandbox.id),
    )


def delete(tx: Transaction, sandbox_id: str) -> None:
    """Forget a sandbox, and the idempotency keys that name it."""
    tx.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))


def find(tx: Transaction, reference: str) -> Sandbox | None:
    """Return the sandbox with that id or name; an id goes first."""
    row = tx.one("SELECT record FROM sandboxes WHERE id = ?", (reference,)) or tx.one(
        "SELECT record FROM sandboxes WHERE name = ?", (reference,)
    )
    return None if row is None else _decoder.decode(row[0])


def page(tx: Transaction, *, owner: str | None, limit: int, before: int | None) -> list[tuple[int, Sandbox]]:
    """Return running sandboxes with their numbers, newest first.

    Args:
        tx: the transaction.
        owner: only those of this key; ``None`` for all.
        limit: how many at most.
        before: only those with a smaller number.
    """
    rows = tx.every(
        "SELECT number, record FROM sandboxes WHERE state = 'running' AND (?1 IS NULL OR owner = ?1)"
        " AND (?2 IS NULL OR number < ?2) ORDER BY number DESC LIMIT ?3",
        (owner, before, limit),
    )
    return [(number, _decoder.decode(record)) for number, record in rows]


def in_state(tx: Transaction, state: SandboxState) -> Sequence[Sandbox]:
    """Return all sandboxes in a state, oldest first."""
    rows = tx.every("SELECT record FROM sandboxes WHERE state = ? ORDER BY number", (state.value,))
    return [_decoder.decode(record) for (record,) in rows]


def due(tx: Transaction, moment: Moment) -> Sequence[Sandbox]:
    """Return the sandboxes whose time-out has come."""
    rows = tx.every(
        "SELECT record FROM sandboxes WHERE state = 'running' AND expires_at IS NOT NULL AND"
        " ((boot_id = ?1 AND expires_boot_ns <= ?2) OR (boot_id <> ?1 AND expires_at <= ?3))",
        (moment.boot_id, moment.boot_ns, moment.wall),
    )
    return [_decoder.decode(record) for (record,) in rows]


def ids(tx: Transaction) -> set[str]:
    """Return the ids of all sandboxes, those being deleted too."""
    return {row[0] for row in tx.every("SELECT id FROM sandboxes")}


def count(tx: Transaction) -> int:
    """Return how many sandboxes there are."""
    row = tx.one("SELECT count(*) FROM sandboxes WHERE state = 'running'")
    return 0 if row is None else int(row[0])


def _encode(sandbox: Sandbox) -> str:
    return msgspec.json.encode(sandbox).decode()
