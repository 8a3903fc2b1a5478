"""What callers see: the JSON forms of the engine's results, the same for REST, ``--json`` and the embedded client.

Each view is a struct, so that OpenAPI's schemas are read off it and a large changeset is encoded once, straight from
the structs. Times are RFC 3339 in UTC. Bytes that are not UTF-8 travel as a printable form beside a ``…_base64`` field
that is there only then (30-speculation §2).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from flux.core.changeset import (
    Changes,
    Changeset,
    ConflictScope,
    Discarded,
    Noted,
    Output,
    RunVia,
    SideEffects,
    State,
    Unstaged,
)

if TYPE_CHECKING:
    from flux.engine import results


def rfc3339(seconds: float) -> str:
    """Return a wall-clock time as text: ``2024-05-01T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_rfc3339(seconds: float | None) -> str | None:
    """Return a wall-clock time as text, or nothing."""
    return None if seconds is None else rfc3339(seconds)


class View(msgspec.Struct, kw_only=True, frozen=True):
    """A JSON object of a reply."""


class ErrorView(View):
    """The shape of every refusal and failure."""

    code: str
    message: str
    details: dict[str, Any]


class Deleted(View):
    """What was deleted."""

    id: str
    deleted: bool = True


class OutputFields(View):
    """Captured output as text; ``…_base64`` holds the exact kept bytes where they are not UTF-8."""

    stdout: str
    stderr: str
    stdout_base64: str | UnsetType = UNSET
    stderr_base64: str | UnsetType = UNSET
    stdout_bytes: int
    stderr_bytes: int


def output_fields(stdout: Output, stderr: Output) -> dict[str, Any]:
    """Return the fields of ``OutputFields``."""
    return {
        "stdout": stdout.text,
        "stderr": stderr.text,
        "stdout_base64": stdout.base64 or UNSET,
        "stderr_base64": stderr.base64 or UNSET,
        "stdout_bytes": stdout.size,
        "stderr_bytes": stderr.size,
    }


class ChangesetSummary(View):
    """A changeset in a list: what is needed to choose one, without its entries and output."""

    id: str
    sandbox_id: str
    state: State
    command: str
    argv: list[str] | None
    created_at: str
    expires_at: str
    run_via: RunVia
    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    counts: dict[str, int]
    unstaged_count: int
    digest: str
    revertible: bool
    base_changed_during_run: bool
    decided_by: str | None
    decided_at: str | None
    comment: str | None
    error: str | None
    parent: str | None
    supersedes: str | None
    superseded_by: str | None
    reverts: str | None
    reverted_by: str | None


class ChangesetView(OutputFields):
    """A changeset with everything a reviewer needs (30-speculation §2)."""

    id: str
    sandbox_id: str
    state: State
    command: str
    argv: list[str] | None
    created_at: str
    expires_at: str
    run_via: RunVia
    copy_engine: str | None
    copy_engine_reason: str | None
    paths: list[str]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    counts: dict[str, int]
    changes: Changes
    unstaged: list[Unstaged]
    skipped: list[Noted]
    not_captured: list[Noted]
    discarded: list[Discarded]
    side_effects: SideEffects
    revertible: bool
    revertible_reason: str | None
    conflict_scope: ConflictScope
    digest: str
    base_changed_during_run: bool
    base_changes: list[str]
    warnings: list[str]
    only: list[str] | None
    decided_by: str | None
    decided_at: str | None
    applied_at: str | None
    finished_at: str | None
    comment: str | None
    error: str | None
    parent: str | None
    supersedes: str | None
    superseded_by: str | None
    reverts: str | None
    reverted_by: str | None


class ChangesetPage(View):
    """One page of changesets, newest first."""

    items: list[ChangesetSummary]
    next_cursor: str | None


_TIMES = ("created_at", "expires_at", "decided_at", "applied_at", "finished_at")


def _shared_fields(view: type[View], record: Changeset) -> dict[str, Any]:
    """Return the fields that a view has under the record's own names, with times as text."""
    names = set(view.__struct_fields__) & set(record.__struct_fields__) - {"stdout", "stderr"}
    fields = {name: getattr(record, name) for name in names}
    return {name: optional_rfc3339(value) if name in _TIMES else value for name, value in fields.items()}


def changeset_summary(record: Changeset) -> ChangesetSummary:
    """Return the list form of a changeset."""
    return ChangesetSummary(**_shared_fields(ChangesetSummary, record), unstaged_count=len(record.unstaged))


def changeset_view(record: Changeset, changes: Changes) -> ChangesetView:
    """Return the full form of a changeset."""
    output = output_fields(record.stdout, record.stderr)
    return ChangesetView(**_shared_fields(ChangesetView, record), **output, changes=changes)
