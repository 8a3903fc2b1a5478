"""The table that indexes changesets. ``meta.json`` is the truth; a row with an intent is where the two may differ."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flux.core.audit import AuditEvent
from flux.core.changeset import FINAL, Changeset, State
from flux.store.database import Moment, Transaction


class Intent(StrEnum):
    """What is about to happen to a changeset's files."""

    CREATE = "create"
    APPROVE = "approve"
    REJECT = "reject"
    EXPIRE = "expire"
    APPLY = "apply"
    FAIL = "fail"
    UPDATE = "update"
    DELETE = "delete"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the index knows of a changeset. ``number`` grows with every new one."""

    number: int
    id: str
    sandbox_id: str
    owner: str | None
    state: State
    intent: Intent | None
    expires_at: float
    boot_id: str
    expires_boot_ns: int
    line: str | None = None

    @property
    def audit_line(self) -> AuditEvent | None:
        """The audit line that the intent calls for."""
        return None if self.line is None else msgspec.json.decode(self.line, type=AuditEvent)


_COLUMNS = "number, id, sandbox_id, owner, state, intent, expires_at, boot_id, expires_boot_ns, line"
_DUE = "((boot_id = ?1 AND expires_boot_ns <= ?2) OR (boot_id <> ?1 AND expires_at <= ?3))"
_OVER = (
    "((finished_boot_id = ?1 AND finished_boot_ns + ?4 * 1000000000 <= ?2)"
    " OR (finished_boot_id IS NOT ?1 AND finished_at + ?4 <= ?3))"
)


def insert(tx: Transaction, record: Changeset, *, owner: str | None, line: AuditEvent | None) -> None:
    """Add a row for a changeset that is about to be published; without a ``line``, for one that already is."""
    tx.execute(
        "INSERT INTO changesets (id, sandbox_id, owner, state, intent, expires_at, boot_id, expires_boot_ns,"
        " finished_at, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            record.sandbox_id,
            owner,
            record.state.value,
            None if line is None else Intent.CREATE.value,
            record.expires_at,
            record.boot_id,
            record.expires_boot_ns,
            record.finished_at,
            _encode(line),
        ),
    )


def intend(tx: Transaction, changeset_id: str, intent: Intent, line: AuditEvent | None = None) -> None:
    """Note what is about to be done, and the audit line that it calls for."""
    tx.execute("UPDATE changesets SET intent = ?, line = ? WHERE id = ?", (intent.value, _encode(line), changeset_id))


def settle(tx: Transaction, record: Changeset, moment: Moment) -> None:
    """Bring a row in line with ``record`` and clear its intent."""
    finished = record.state in FINAL
    tx.execute(
        "UPDATE changesets SET state = ?, intent = NULL, line = NULL, finished_at = ?,"
        " finished_boot_id = coalesce(finished_boot_id, ?), finished_boot_ns = coalesce(finished_boot_ns, ?)"
        " WHERE id = ?",
        (
            record.state.value,
            record.finished_at,
            moment.boot_id if finished else None,
            moment.boot_ns if finished else None,
            record.id,
        ),
    )


def delete(tx: Transaction, changeset_id: str) -> None:
    """Forget a changeset."""
    tx.execute("DELETE FROM changesets WHERE id = ?", (changeset_id,))


def find(tx: Transaction, changeset_id: str) -> Row | None:
    """Return the row of a changeset."""
    row = tx.one(f"SELECT {_COLUMNS} FROM changesets WHERE id = ?", (changeset_id,))
    return None if row is None else _row(row)


def page(tx: Transaction, sandbox_id: str, *, limit: int, before: int | None) -> list[Row]:
    """Return a sandbox's changesets, newest first, those with a number below ``before`` if given."""
    rows = tx.every(
        f"SELECT {_COLUMNS} FROM changesets WHERE sandbox_id = ?1 AND intent IS NOT 'create'"
        " AND (?2 IS NULL OR number < ?2) ORDER BY number DESC LIMIT ?3",
        (sandbox_id, before, limit),
    )
    return [_row(row) for row in rows]


def of_sandbox(tx: Transaction, sandbox_id: str) -> list[Row]:
    """Return all changesets of a sandbox, newest first."""
    rows = tx.every(f"SELECT {_COLUMNS} FROM changesets WHERE sandbox_id = ? ORDER BY number DESC", (sandbox_id,))
    return [_row(row) for row in rows]


def with_intent(tx: Transaction) -> list[Row]:
    """Return the rows where something was about to happen, oldest first."""
    rows = tx.every(f"SELECT {_COLUMNS} FROM changesets WHERE intent IS NOT NULL ORDER BY number")
    return [_row(row) for row in rows]


def due(tx: Transaction, moment: Moment) -> list[Row]:
    """Return the open changesets whose time is over (spec: speculation)."""
    rows = tx.every(
        f"SELECT {_COLUMNS} FROM changesets WHERE state IN ('pending', 'approved') AND intent IS NULL AND {_DUE}",
        (moment.boot_id, moment.boot_ns, moment.wall),
    )
    return [_row(row) for row in rows]


def over(tx: Transaction, moment: Moment, retention_seconds: int) -> list[Row]:
    """Return the finished changesets that were kept for long enough."""
    rows = tx.every(
        f"SELECT {_COLUMNS} FROM changesets WHERE finished_at IS NOT NULL AND intent IS NULL AND {_OVER}",
        (moment.boot_id, moment.boot_ns, moment.wall, retention_seconds),
    )
    return [_row(row) for row in rows]


def _encode(line: AuditEvent | None) -> str | None:
    return None if line is None else msgspec.json.encode(line).decode()


def _row(row: tuple[object, ...]) -> Row:
    return msgspec.convert(dict(zip(Row.__struct_fields__, row, strict=True)), Row)
