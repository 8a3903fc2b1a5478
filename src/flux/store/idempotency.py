"""The table of idempotency keys: which request made which sandbox (20-sandboxes §3)."""

from __future__ import annotations

from flux.store.database import Transaction


def find(tx: Transaction, scope: str, key: str) -> tuple[str, str] | None:
    """Return ``(request digest, sandbox id)`` of a key within the scope of one caller."""
    row = tx.one("SELECT request_sha256, sandbox_id FROM idempotency WHERE scope = ? AND key = ?", (scope, key))
    return None if row is None else (row[0], row[1])


def insert(tx: Transaction, scope: str, key: str, request_sha256: str, sandbox_id: str) -> None:
    """Remember a key."""
    tx.execute(
        "INSERT INTO idempotency (scope, key, request_sha256, sandbox_id, created_at) VALUES (?, ?, ?, ?, ?)",
        (scope, key, request_sha256, sandbox_id, tx.now),
    )


def delete_before(tx: Transaction, created_at: float) -> None:
    """Forget the keys that are older."""
    tx.execute("DELETE FROM idempotency WHERE created_at < ?", (created_at,))
