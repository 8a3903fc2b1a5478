"""The tables of artifacts and of who pins them (§6)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from flux.core.node import ArtifactReference
from flux.store.database import Transaction

State: TypeAlias = Literal["local", "uploading", "durable"]
Kind: TypeAlias = Literal["suspend", "snapshot"]

_COLUMNS = "id, sandbox_id, generation, digest, kind, state, parent, size, stored, created_at"


class ArtifactRow(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact that this node made or was told to restore. Sizes in bytes, time in wall-clock seconds.

    ``generation``: which made it, 0 if another node did.
    """

    id: str
    sandbox_id: str
    generation: int
    digest: str
    kind: Kind
    state: State
    parent: str | None = None
    size: int = 0
    stored: int = 0
    created_at: float = 0.0

    @property
    def reference(self) -> ArtifactReference:
        """The artifact by id and digest."""
        return ArtifactReference(id=self.id, digest=self.digest, durable=self.state == "durable")


def insert(tx: Transaction, row: ArtifactRow) -> bool:
    """Add an artifact; ``False``, and nothing changes, if it is known: its id names its content."""
    values = msgspec.structs.astuple(row)
    marks = ", ".join("?" * len(values))
    return tx.execute(f"INSERT OR IGNORE INTO artifacts ({_COLUMNS}) VALUES ({marks})", values) == 1


def find(tx: Transaction, artifact_id: str | None) -> ArtifactRow | None:
    """Return an artifact."""
    row = tx.one(f"SELECT {_COLUMNS} FROM artifacts WHERE id = ?", (artifact_id,))
    return None if row is None else _row(row)


def reference(tx: Transaction, artifact_id: str | None) -> ArtifactReference | None:
    """Return an artifact by id and digest."""
    row = find(tx, artifact_id)
    return None if row is None else row.reference


def is_durable(tx: Transaction, artifact_id: str | None) -> bool:
    """Tell whether the object store has confirmed every part of an artifact."""
    return tx.one("SELECT 1 FROM artifacts WHERE id = ? AND state = 'durable'", (artifact_id,)) is not None


def set_state(tx: Transaction, artifact_id: str, state: State) -> None:
    """Record how far an artifact is on its way to the object store; a durable one stays durable."""
    tx.execute("UPDATE artifacts SET state = ? WHERE id = ? AND state <> 'durable'", (state, artifact_id))


def every(tx: Transaction) -> list[ArtifactRow]:
    """Return all artifacts, oldest first."""
    return [_row(row) for row in tx.every(f"SELECT {_COLUMNS} FROM artifacts ORDER BY created_at, id")]


def pin(tx: Transaction, holder: str, artifact_id: str) -> None:
    """Let a holder need an artifact."""
    tx.execute("INSERT OR IGNORE INTO pins (holder, artifact_id) VALUES (?, ?)", (holder, artifact_id))


def pinned_by(tx: Transaction, holder: str) -> ArtifactRow | None:
    """Return the artifact that a holder needs."""
    row = tx.one("SELECT artifact_id FROM pins WHERE holder = ?", (holder,))
    return None if row is None else find(tx, row[0])


def is_pinned(tx: Transaction, artifact_id: str | None, *, but_for: str) -> bool:
    """Tell whether somebody other than the row ``but_for`` still needs an artifact on this machine.

    That is a pin on what is not durable, or a row that restores it now.
    """
    return (
        tx.one(
            "SELECT 1 FROM pins JOIN artifacts ON artifacts.id = pins.artifact_id"
            " WHERE pins.artifact_id = ?1 AND artifacts.state <> 'durable'"
            " UNION ALL SELECT 1 FROM sandboxes WHERE restoring = ?1 AND id <> ?2",
            (artifact_id, but_for),
        )
        is not None
    )


#: What is referred to, and so never collected: by rows and in-flight restores; by open jobs; by endings that the
#: control plane does not know of yet, and by pins, as long as no other machine can have the artifact.
_NEEDED = """
    SELECT artifact_id AS id FROM sandboxes WHERE artifact_id IS NOT NULL
    UNION SELECT restoring FROM sandboxes WHERE restoring IS NOT NULL
    UNION SELECT named FROM sandboxes WHERE named IS NOT NULL
    UNION SELECT artifact_id FROM upload_jobs WHERE state = 'open'
    UNION SELECT pins.artifact_id FROM pins JOIN artifacts ON artifacts.id = pins.artifact_id
          WHERE artifacts.state <> 'durable'
    UNION SELECT endings.artifact_id FROM endings JOIN artifacts ON artifacts.id = endings.artifact_id
          JOIN fences ON fences.sandbox_id = endings.sandbox_id
          WHERE artifacts.state <> 'durable' AND fences.retired < 9223372036854775807
"""


def needed(tx: Transaction) -> set[str]:
    """Return the ids of all artifacts that must stay on this machine.

    The predecessor of a needed one stays until its successor is durable (§6), and so on along the chain.
    """
    rows = tx.every(
        f"WITH RECURSIVE needed (id) AS ({_NEEDED} UNION SELECT artifacts.parent FROM artifacts"
        " JOIN needed ON needed.id = artifacts.id WHERE artifacts.state <> 'durable' AND artifacts.parent IS NOT NULL)"
        " SELECT id FROM needed"
    )
    return {row[0] for row in rows}


def delete(tx: Transaction, artifact_id: str) -> None:
    """Forget an artifact with its job and its pins."""
    tx.execute("DELETE FROM pins WHERE artifact_id = ?", (artifact_id,))
    tx.execute("DELETE FROM artifacts WHERE id = ?", (artifact_id,))


def _row(row: tuple[object, ...]) -> ArtifactRow:
    return msgspec.convert(dict(zip(_COLUMNS.split(", "), row, strict=True)), ArtifactRow)
