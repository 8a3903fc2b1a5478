"""The registry's table of starts: every node store that was ever sent a Start of a sandbox (spec: generations, §8)."""

from __future__ import annotations

import msgspec

from flux.store.registry.database import RegistryTransaction


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A node store that may have something of a sandbox. ``acknowledged``: it answered the sandbox's destruction."""

    sandbox_id: str
    node_store_id: str
    node: str
    acknowledged: bool


def record(tx: RegistryTransaction, sandbox_id: str, node_store_id: str, node: str) -> None:
    """Remember, before it is sent, that a node gets a Start."""
    tx.execute(
        "INSERT INTO starts (sandbox_id, node_store_id, node, acknowledged) VALUES (?, ?, ?, 0)"
        " ON CONFLICT (sandbox_id, node_store_id) DO NOTHING",
        (sandbox_id, node_store_id, node),
    )


def of(tx: RegistryTransaction, sandbox_id: str) -> list[Start]:
    """Return all starts of a sandbox."""
    rows = tx.every(
        "SELECT sandbox_id, node_store_id, node, acknowledged FROM starts WHERE sandbox_id = ? ORDER BY node",
        (sandbox_id,),
    )
    return [
        Start(sandbox_id=sandbox_id, node_store_id=store, node=node, acknowledged=bool(acknowledged))
        for sandbox_id, store, node, acknowledged in rows
    ]


def acknowledge(tx: RegistryTransaction, sandbox_id: str, node_store_id: str) -> None:
    """Note that a node has destroyed everything of a sandbox."""
    tx.execute(
        "UPDATE starts SET acknowledged = 1 WHERE sandbox_id = ? AND node_store_id = ?", (sandbox_id, node_store_id)
    )
