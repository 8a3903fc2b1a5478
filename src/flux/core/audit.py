"""The audit log's lines as values (spec: access)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class AuditKind(StrEnum):
    """What is recorded."""

    SANDBOX_CREATE = "sandbox.create"
    SANDBOX_DELETE = "sandbox.delete"
    SANDBOX_PAUSE = "sandbox.pause"
    SANDBOX_RESUME = "sandbox.resume"
    SANDBOX_SNAPSHOT = "sandbox.snapshot"
    SANDBOX_FORK = "sandbox.fork"
    SANDBOX_LOST = "sandbox.lost"
    SANDBOX_EXEC = "sandbox.exec"
    SANDBOX_WRITE = "sandbox.write"
    CHANGESET_CREATE = "changeset.create"
    CHANGESET_APPROVED = "changeset.approved"
    CHANGESET_REJECTED = "changeset.rejected"
    CHANGESET_APPLIED = "changeset.applied"
    CHANGESET_CONFLICT = "changeset.conflict"
    CHANGESET_FAILED = "changeset.failed"
    CHANGESET_EXPIRED = "changeset.expired"
    CHANGESET_REVERTED = "changeset.reverted"
    ARTIFACT_DELETE = "artifact.delete"
    NODE_ADD = "node.add"
    NODE_FORGET = "node.forget"
    KEY_CREATE = "key.create"
    KEY_REVOKE = "key.revoke"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. ``time`` in wall-clock seconds; ``vm_id`` is the same as ``sandbox_id``.

    ``id`` is unique. That of a changeset's transition is made from the changeset and the transition, so that recovery
    can tell whether a crash swallowed the line.
    """

    id: str
    time: float
    event: str
    actor: str
    role: str
    sandbox_id: str | None = None
    vm_id: str | None = None
    changeset: str | None = None
    details: dict[str, Any] = {}


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines to read; what is ``None`` does not narrow. ``since`` in wall-clock seconds."""

    sandbox_id: str | None = None
    changeset: str | None = None
    event: str | None = None
    actor: str | None = None
    since: float | None = None

    def matches(self, line: AuditEvent) -> bool:
        """Tell whether a line is among them."""
        wanted = (
            (self.sandbox_id, line.sandbox_id),
            (self.changeset, line.changeset),
            (self.event, line.event),
            (self.actor, line.actor),
        )
        return all(want in (None, held) for want, held in wanted) and (self.since is None or line.time >= self.since)
