"""The registry's table of artifacts: all that any node told of, until they are collected (spec: generations, §6)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReport
from flux.core.paths import printable
from flux.core.sandbox import Sandbox
from flux.store.registry.database import RegistryTransaction


class ArtifactRow(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact. ``node_store_id``: where it is local. Sizes in bytes, time in wall-clock seconds.

    ``record``: the sandbox's as it was; artifacts that are older than this column have none.
    """

    id: str
    digest: str
    sandbox_id: str
    generation: int
    kind: Literal["suspend", "snapshot"]
    created_at: float
    owner: str | None = None
    name: str | None = None
    node: str | None = None
    node_store_id: str | None = None
    parent: str | None = None
    durable: bool = False
    size: int = 0
    stored: int = 0
    error: str | None = None
    record: Sandbox | None = None


_COLUMNS = ArtifactRow.__struct_fields__
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM artifacts"
_INSERT = (
    f"INSERT INTO artifacts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"
    " ON CONFLICT (id) DO NOTHING"
)
_record = msgspec.json.Decoder(Sandbox)


def add(tx: RegistryTransaction, row: ArtifactRow) -> None:
    """Add an artifact; nothing happens if it is known."""
    values = msgspec.structs.asdict(row)
    values["record"] = None if row.record is None else msgspec.json.encode(row.record).decode()
    tx.execute(_INSERT, [int(value) if isinstance(value, bool) else value for value in values.values()])


def report(tx: RegistryTransaction, found: ArtifactReport) -> bool:
    """Take a node's word for an artifact's size and whether it is durable, once and for all; tell if that is news."""
    news = tx.execute(
        "UPDATE artifacts SET durable = 1, error = NULL WHERE id = ? AND durable = 0 AND ? = 1",
        (found.id, int(found.state == "durable")),
    )
    tx.execute(
        "UPDATE artifacts SET size = ?, stored = ?, error = ? WHERE id = ? AND (size <> ? OR stored <> ? OR"
        " coalesce(error, '') <> ?)",
        (found.size, found.stored, found.error, found.id, found.size, found.stored, found.error or ""),
    )
    return news > 0


def keep(tx: RegistryTransaction, artifact_id: str, name: str | None) -> None:
    """Make an artifact a snapshot: it is kept until it is deleted, whatever becomes of its sandbox."""
    tx.execute("UPDATE artifacts SET kind = 'snapshot', name = coalesce(?, name) WHERE id = ?", (name, artifact_id))


def release(tx: RegistryTransaction, artifact_id: str) -> None:
    """Make a snapshot an artifact like any other: it goes when nothing rests on it."""
    tx.execute("UPDATE artifacts SET kind = 'suspend', name = NULL WHERE id = ?", (artifact_id,))


def delete(tx: RegistryTransaction, artifact_id: str) -> None:
    """Forget an artifact."""
    tx.execute("DELETE FROM artifacts WHERE id = ?", (artifact_id,))


def find(tx: RegistryTransaction, reference: str, owner: str | None = None) -> ArtifactRow | None:
    """Return an artifact by its id, or the latest snapshot of a name; if ``owner`` is given, of those that it owns."""
    found = tx.one(f"{_SELECT} WHERE id = ?", (reference,))
    if found is None:
        whose, values = ("", [reference]) if owner is None else (" AND owner = ?", [reference, owner])
        found = tx.one(
            f"{_SELECT} WHERE name = ? AND kind = 'snapshot'{whose} ORDER BY created_at DESC, id LIMIT 1", values
        )
    return None if found is None else _row(found)


def lock(tx: RegistryTransaction, artifact_id: str) -> ArtifactRow | None:
    """Return an artifact and keep it from changing until the transaction ends."""
    found = tx.locked(f"{_SELECT} WHERE id = ?", (artifact_id,))
    return None if found is None else _row(found)


def every(tx: RegistryTransaction) -> list[ArtifactRow]:
    """Return all artifacts, newest first."""
    return [_row(found) for found in tx.every(f"{_SELECT} ORDER BY created_at DESC, id")]


def of_sandbox(tx: RegistryTransaction, sandbox_id: str) -> list[ArtifactRow]:
    """Return a sandbox's artifacts, newest first."""
    found = tx.every(f"{_SELECT} WHERE sandbox_id = ? ORDER BY created_at DESC, id", (sandbox_id,))
    return [_row(values) for values in found]


def none(reference: str) -> FluxError:
    """Return the error for an artifact that is not there, or not for this actor."""
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find the artifact {printable(reference)[:80]!r}: there is none with that id or name; list them to see",
    )


def _row(found: tuple[Any, ...]) -> ArtifactRow:
    values = dict(zip(_COLUMNS, found, strict=True))
    values["durable"] = bool(values["durable"])
    values["record"] = None if values["record"] is None else _record.decode(values["record"])
    return ArtifactRow(**values)
