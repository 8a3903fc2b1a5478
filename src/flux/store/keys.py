"""The table of API keys. A secret is kept as its SHA-256 only; it has 256 random bits, so that needs no salt."""

from __future__ import annotations

import sqlite3

from flux.core.access import Key, Role
from flux.core.errors import Code, FluxError
from flux.store.database import Transaction

_COLUMNS = "id, name, role, created_at, revoked_at"


def insert(tx: Transaction, key: Key, secret_sha256: str) -> None:
    """Add a key.

    Raises:
        FluxError: ``already_exists`` if a key in force has the name.
    """
    try:
        tx.execute(
            "INSERT INTO keys (id, name, role, secret_sha256, created_at) VALUES (?, ?, ?, ?, ?)",
            (key.id, key.name, key.role.value, secret_sha256, key.created_at),
        )
    except sqlite3.IntegrityError as error:
        raise FluxError(
            Code.ALREADY_EXISTS,
            f"cannot create the key: one named {key.name!r} is in force; revoke it first, or choose another name",
            {"field": "name"},
        ) from error


def revoke(tx: Transaction, reference: str) -> Key | None:
    """Revoke the key with that id, or the one in force with that name; return it, ``None`` if there is none."""
    row = tx.one(f"SELECT {_COLUMNS} FROM keys WHERE id = ?", (reference,)) or tx.one(
        f"SELECT {_COLUMNS} FROM keys WHERE name = ? AND revoked_at IS NULL", (reference,)
    )
    if row is None:
        return None
    tx.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (tx.now, row[0]))
    return _key(row if row[4] is not None else (*row[:4], tx.now))


def every(tx: Transaction) -> list[Key]:
    """Return all keys, oldest first."""
    return [_key(row) for row in tx.every(f"SELECT {_COLUMNS} FROM keys ORDER BY number")]


def in_force(tx: Transaction, secret_sha256: str) -> Key | None:
    """Return the key with that secret unless it was revoked."""
    row = tx.one(f"SELECT {_COLUMNS} FROM keys WHERE secret_sha256 = ? AND revoked_at IS NULL", (secret_sha256,))
    return None if row is None else _key(row)


def named_in_force(tx: Transaction, reference: str) -> Key | None:
    """Return the key with that id or name unless it was revoked."""
    row = tx.one(f"SELECT {_COLUMNS} FROM keys WHERE (id = ?1 OR name = ?1) AND revoked_at IS NULL", (reference,))
    return None if row is None else _key(row)


def _key(row: tuple[object, ...]) -> Key:
    key_id, name, role, created_at, revoked_at = row
    return Key(
        id=str(key_id),
        name=str(name),
        role=Role(str(role)),
        created_at=float(str(created_at)),
        revoked_at=None if revoked_at is None else float(str(revoked_at)),
    )
