"""The registry's table of sandboxes: identity, route, wake, current artifact, time-out (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, ArtifactReference
from flux.core.route import Execution, Route
from flux.core.sandbox import Sandbox
from flux.store.database import Moment
from flux.store.registry.database import Duplicate, RegistryTransaction


class SandboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row; the columns are drawn in the migration. ``number`` is 0 until it is stored."""

    number: int = 0
    id: str
    name: str | None
    owner: str | None
    state: ControlState
    version: int = 0
    record: Sandbox
    generation: int = 0
    attempt_id: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    node_store_id: str | None = None
    address: str = ""
    credential: str = ""
    request: Activate | None = None
    tries: int = 0
    refused: int = 0
    driver: str | None = None
    wake_id: str | None = None
    failure: str | None = None
    artifact_id: str | None = None
    artifact_digest: str | None = None
    artifact_durable: bool = False
    artifact_generation: int = 0
    artifact_store: str | None = None
    woke_from: Literal["artifact", "last_artifact_after_stop", "cold"] | None = None
    stopped: bool = False
    lived: bool = False
    ttl_seconds: int | None = None
    on_timeout: Literal["kill", "pause"] = "kill"
    expires_at: float | None = None
    boot_id: str = ""
    expires_boot_ns: int = 0
    token: str | None = None

    @property
    def route(self) -> Route:
        """The route evidence of the current generation; there is one once it was minted."""
        return Route(generation=self.generation, attempt_id=self.attempt_id or "", pod_uid=self.pod_uid or "")

    @property
    def execution(self) -> Execution:
        """The current generation's execution."""
        return Execution(generation=self.generation, pod_uid=self.pod_uid or "")

    @property
    def artifact(self) -> ArtifactReference | None:
        """What the sandbox wakes from."""
        if self.artifact_id is None or self.artifact_digest is None:
            return None
        return ArtifactReference(id=self.artifact_id, digest=self.artifact_digest, durable=self.artifact_durable)

    @property
    def sandbox(self) -> Sandbox:
        """The record with the time-out as it is now."""
        return msgspec.structs.replace(
            self.record,
            name=self.name or self.record.name,
            ttl_seconds=self.ttl_seconds,
            on_timeout=self.on_timeout,
            expires_at=self.expires_at,
            boot_id=self.boot_id,
            expires_boot_ns=self.expires_boot_ns,
        )


_COLUMNS = SandboxRow.__struct_fields__
_STORED = tuple(name for name in _COLUMNS if name != "number")
_FLAGS = ("artifact_durable", "stopped", "lived")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM sandboxes"
_INSERT = f"INSERT INTO sandboxes ({', '.join(_STORED)}) VALUES ({', '.join('?' for _ in _STORED)})"
_UPDATE = f"UPDATE sandboxes SET {', '.join(f'{name} = ?' for name in _STORED)} WHERE id = ?"
_record = msgspec.json.Decoder(Sandbox)
_request = msgspec.json.Decoder(Activate)
#: The states in which a sandbox exists for its owner.
LIVING = tuple(state.value for state in ControlState if state not in (ControlState.KILLING, ControlState.KILLED))


def insert(tx: RegistryTransaction, row: SandboxRow) -> None:
    """Add a sandbox. Raises ``FluxError`` ``already_exists`` if its name is taken."""
    try:
        tx.execute(_INSERT, _values(row))
    except Duplicate as error:
        raise FluxError(
            Code.ALREADY_EXISTS,
            f"cannot create the sandbox: the name {row.name!r} is taken; choose another",
            {"field": "name", "name": row.name},
        ) from error


def write(tx: RegistryTransaction, row: SandboxRow, **changes: Any) -> SandboxRow:
    """Replace a row that was read, locked, in the same transaction; its version goes up by one."""
    changed = msgspec.structs.replace(row, version=row.version + 1, **changes)
    tx.execute(_UPDATE, [*_values(changed), row.id])
    return changed


def lock(tx: RegistryTransaction, sandbox_id: str) -> SandboxRow | None:
    """Return a row and keep it from changing until the transaction ends."""
    return _decoded(tx.locked(f"{_SELECT} WHERE id = ?", (sandbox_id,)))


def read(tx: RegistryTransaction, sandbox_id: str) -> SandboxRow | None:
    """Return a row as it is."""
    return _decoded(tx.one(f"{_SELECT} WHERE id = ?", (sandbox_id,)))


def find(tx: RegistryTransaction, reference: str) -> SandboxRow | None:
    """Return the sandbox with that id or name; an id goes first."""
    return read(tx, reference) or _decoded(tx.one(f"{_SELECT} WHERE name = ?", (reference,)))


def delete(tx: RegistryTransaction, sandbox_id: str) -> None:
    """Forget a sandbox, its starts and its idempotency keys."""
    tx.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))


def page(
    tx: RegistryTransaction,
    states: Sequence[str],
    *,
    owner: str | None,
    limit: int,
    beyond: int | None,
    oldest_first: bool = False,
) -> list[SandboxRow]:
    """Return sandboxes in some states, newest first unless ``oldest_first``; of one owner only, if given.

    ``beyond``: go on after the one with that number.
    """
    if not states:
        return []
    clauses, values = [f"state IN ({', '.join('?' for _ in states)})"], list[str | int](states)
    if owner is not None:
        clauses.append("owner = ?")
        values.append(owner)
    if beyond is not None:
        clauses.append("number > ?" if oldest_first else "number < ?")
        values.append(beyond)
    order = "ASC" if oldest_first else "DESC"
    query = f"{_SELECT} WHERE {' AND '.join(clauses)} ORDER BY number {order} LIMIT ?"
    return [_row(found) for found in tx.every(query, [*values, limit])]


def in_states(tx: RegistryTransaction, *states: ControlState) -> list[SandboxRow]:
    """Return all sandboxes in some states, oldest first."""
    marks = ", ".join("?" for _ in states)
    found = tx.every(f"{_SELECT} WHERE state IN ({marks}) ORDER BY number", [state.value for state in states])
    return [_row(values) for values in found]


def due(tx: RegistryTransaction, moment: Moment) -> list[SandboxRow]:
    """Return the running sandboxes whose time-out has come."""
    found = tx.every(
        f"{_SELECT} WHERE state = 'running' AND expires_at IS NOT NULL AND"
        " ((boot_id = ? AND expires_boot_ns <= ?) OR (boot_id <> ? AND expires_at <= ?)) ORDER BY number",
        (moment.boot_id, moment.boot_ns, moment.boot_id, moment.wall),
    )
    return [_row(values) for values in found]


def started_at(tx: RegistryTransaction, node_store_id: str) -> list[SandboxRow]:
    """Return all sandboxes, tombstones too, that a node store was ever sent a Start of."""
    query = f"{_SELECT} WHERE id IN (SELECT sandbox_id FROM starts WHERE node_store_id = ?) ORDER BY number"
    return [_row(values) for values in tx.every(query, (node_store_id,))]


def routed_to(tx: RegistryTransaction, node_store_id: str) -> list[SandboxRow]:
    """Return the sandboxes whose current route is on a node store."""
    query = f"{_SELECT} WHERE node_store_id = ? ORDER BY number"
    return [_row(values) for values in tx.every(query, (node_store_id,))]


def resting_on(tx: RegistryTransaction, artifact_id: str) -> list[str]:
    """Return the ids of the sandboxes that wake from an artifact, or are being started from it."""
    found = tx.every("SELECT id FROM sandboxes WHERE artifact_id = ? AND state NOT IN ('killed')", (artifact_id,))
    return [sandbox_id for (sandbox_id,) in found]


def made_durable(tx: RegistryTransaction, artifact_id: str) -> int:
    """Note that the object store has an artifact, in every row that rests on it."""
    return tx.execute(
        "UPDATE sandboxes SET artifact_durable = 1, version = version + 1"
        " WHERE artifact_id = ? AND artifact_durable = 0",
        (artifact_id,),
    )


def known(tx: RegistryTransaction) -> set[str]:
    """Return the ids of all sandboxes, tombstones too."""
    return {sandbox_id for (sandbox_id,) in tx.every("SELECT id FROM sandboxes")}


def tokens(tx: RegistryTransaction) -> list[tuple[str, str | None]]:
    """Return the id and the token of every sandbox that exists for its owner."""
    marks = ", ".join("?" for _ in LIVING)
    found = tx.every(f"SELECT id, token FROM sandboxes WHERE state IN ({marks}) ORDER BY number", LIVING)
    return [(sandbox_id, token) for sandbox_id, token in found]


def count(tx: RegistryTransaction) -> int:
    """Return how many sandboxes exist for their owners."""
    found = tx.one("SELECT count(*) FROM sandboxes WHERE state NOT IN ('killing', 'killed')")
    return 0 if found is None else int(found[0])


def _values(row: SandboxRow) -> list[Any]:
    values = {name: getattr(row, name) for name in _STORED}
    values["state"] = row.state.value
    values["record"] = msgspec.json.encode(row.record).decode()
    values["request"] = None if row.request is None else msgspec.json.encode(row.request).decode()
    for name in _FLAGS:
        values[name] = int(values[name])
    return list(values.values())


def _row(found: Sequence[Any]) -> SandboxRow:
    values = dict(zip(_COLUMNS, found, strict=True))
    values["state"] = ControlState(values["state"])
    values["record"] = _record.decode(values["record"])
    values["request"] = None if values["request"] is None else _request.decode(values["request"])
    for name in _FLAGS:
        values[name] = bool(values[name])
    return SandboxRow(**values)


def _decoded(found: Sequence[Any] | None) -> SandboxRow | None:
    return None if found is None else _row(found)
