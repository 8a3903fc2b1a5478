"""The registry's table of nodes (spec: generations, §9)."""

from __future__ import annotations

from typing import Any

import msgspec

from flux.core.control import NodeStatus
from flux.core.errors import Code, FluxError
from flux.core.node import Described
from flux.store.registry.database import Duplicate, RegistryTransaction

_COLUMNS = (
    "name, address, node_store_id, added_at, kinds, data_address, disk_total, disk_free, running, software, seen_at,"
    " reachable, forgotten_at"
)


def insert(tx: RegistryTransaction, name: str, address: str, described: Described) -> None:
    """Add a node. Raises ``FluxError`` ``already_exists`` if its name, or its store, is registered."""
    try:
        tx.execute(
            f"INSERT INTO nodes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, NULL)",
            (name, address, described.node_store_id, tx.now, *_described(described), tx.now),
        )
    except Duplicate as error:
        raise FluxError(
            Code.ALREADY_EXISTS,
            f"cannot add the node {name!r}: a node with this name, or with the same store, is registered; list them",
            {"node_store_id": described.node_store_id},
        ) from error


def seen(tx: RegistryTransaction, name: str, described: Described) -> None:
    """Note what a node said of itself. A store that is not the registered one is another node: nothing is noted."""
    tx.execute(
        "UPDATE nodes SET kinds = ?, data_address = ?, disk_total = ?, disk_free = ?, running = ?, software = ?,"
        " seen_at = ?, reachable = 1 WHERE name = ? AND node_store_id = ?",
        (*_described(described), tx.now, name, described.node_store_id),
    )


def unreachable(tx: RegistryTransaction, name: str) -> None:
    """Note that a node does not answer: others are tried first."""
    tx.execute("UPDATE nodes SET reachable = 0 WHERE name = ? AND reachable = 1", (name,))


def forget(tx: RegistryTransaction, name: str) -> None:
    """Note that an operator declared everything on a node lost."""
    tx.execute("UPDATE nodes SET forgotten_at = ?, reachable = 0 WHERE name = ?", (tx.now, name))


def rename(tx: RegistryTransaction, name: str, to: str) -> None:
    """Free a forgotten node's name for another one."""
    tx.execute("UPDATE nodes SET name = ? WHERE name = ?", (to, name))


def delete(tx: RegistryTransaction, name: str) -> None:
    """Remove a node that comes back, to be added anew."""
    tx.execute("DELETE FROM nodes WHERE name = ?", (name,))


def find(tx: RegistryTransaction, name: str) -> NodeStatus | None:
    """Return a node by its name."""
    found = tx.one(f"SELECT {_COLUMNS} FROM nodes WHERE name = ?", (name,))
    return None if found is None else _status(found)


def every(tx: RegistryTransaction) -> list[NodeStatus]:
    """Return all nodes by name, forgotten ones too."""
    return [_status(found) for found in tx.every(f"SELECT {_COLUMNS} FROM nodes ORDER BY name")]


def _described(described: Described) -> tuple[str | int, ...]:
    return (
        msgspec.json.encode(described.kinds).decode(),
        described.address,
        described.disk_total,
        described.disk_free,
        described.running,
        described.version,
    )


def _status(found: tuple[Any, ...]) -> NodeStatus:
    name, address, store, added, kinds, data, total, free, running, software, seen_at, reachable, forgotten = found
    return NodeStatus(
        name=name,
        address=address,
        node_store_id=store,
        added_at=added,
        kinds=tuple(msgspec.json.decode(kinds, type=list[str])),
        data_address=data,
        disk_total=total,
        disk_free=free,
        running=running,
        version=software,
        seen_at=seen_at,
        reachable=bool(reachable),
        forgotten_at=forgotten,
    )
