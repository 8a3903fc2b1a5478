"""The registry's table of idempotency keys: which request made which sandbox (spec: sandboxes)."""

from __future__ import annotations

import msgspec

from flux.store.registry.database import RegistryTransaction


class Held(msgspec.Struct, frozen=True):
    """What a key stands for: the digest of the request, the sandbox that it made, and when (wall-clock seconds)."""

    request_sha256: str
    sandbox_id: str
    created_at: float


def find(tx: RegistryTransaction, scope: str, key: str) -> Held | None:
    """Return what a key stands for within the scope of one caller."""
    row = tx.one(
        "SELECT request_sha256, sandbox_id, created_at FROM idempotency WHERE scope = ? AND key = ?", (scope, key)
    )
    return None if row is None else Held(*row)


def insert(tx: RegistryTransaction, scope: str, key: str, request_sha256: str, sandbox_id: str) -> bool:
    """Remember a key; ``False`` if a request with the same key was faster."""
    inserted = tx.execute(
        "INSERT INTO idempotency (scope, key, request_sha256, sandbox_id, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (scope, key) DO NOTHING",
        (scope, key, request_sha256, sandbox_id, tx.now),
    )
    return inserted > 0


def delete_before(tx: RegistryTransaction, created_at: float) -> None:
    """Forget the keys that are older."""
    tx.execute("DELETE FROM idempotency WHERE created_at < ?", (created_at,))


def delete_of(tx: RegistryTransaction, sandbox_id: str) -> None:
    """Forget the keys that made a sandbox: the same request makes a new one."""
    tx.execute("DELETE FROM idempotency WHERE sandbox_id = ?", (sandbox_id,))
