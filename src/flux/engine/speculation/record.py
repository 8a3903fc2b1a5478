"""From a finished run, or an inverse, to the record that a changeset is kept by (spec: speculation)."""

from __future__ import annotations

from typing import Any

import msgspec

from flux.core import paths, plan
from flux.core.changeset import (
    Changes,
    Changeset,
    ConflictScope,
    Discarded,
    Noted,
    RunVia,
    SideEffects,
    State,
    Unstaged,
)
from flux.core.digest import changeset_digest
from flux.engine.context import Context
from flux.engine.speculation import lookup
from flux.engine.speculation.drive import Outcome

_NANOSECONDS = 1_000_000_000


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Which tree a changeset is about. ``same_mount``: the state directory lies on its mount."""

    path: str
    device: int
    inode: int
    same_mount: bool


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a changeset holds: its changes, what they lack, the encoded base, and what they cover."""

    tree: Tree
    changes: Changes
    unstaged: list[Unstaged]
    base: bytes
    paths: list[str]
    scope: ConflictScope


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a changeset comes from. ``command`` and ``argv`` as they are shown and kept."""

    command: str
    argv: list[str] | None
    run_via: RunVia
    outcome: Outcome
    side_effects: SideEffects
    copy_engine: str | None = None
    copy_engine_reason: str | None = None
    skipped: list[Noted] = []
    not_captured: list[Noted] = []
    discarded: list[Discarded] = []
    base_changes: list[str] = []
    parent: str | None = None
    supersedes: str | None = None
    reverts: str | None = None


def make(
    context: Context, sandbox_id: str, changeset_id: str, content: Content, origin: Origin, ttl_seconds: int | None
) -> Changeset:
    """Return the record of a new, pending changeset."""
    revertible, reason = plan.revertible(
        content.changes.every(), context.settings.caps.revert_bytes, same_mount=content.tree.same_mount
    )
    covered = [paths.portable(path) for path in content.paths]
    outcome = origin.outcome
    return Changeset(
        id=changeset_id,
        sandbox_id=sandbox_id,
        state=State.PENDING,
        command=origin.command,
        argv=origin.argv,
        run_via=origin.run_via,
        copy_engine=origin.copy_engine,
        copy_engine_reason=origin.copy_engine_reason,
        paths=covered,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        duration_ms=outcome.duration_ms,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        counts=lookup.counts(content.changes),
        unstaged=content.unstaged,
        skipped=origin.skipped,
        not_captured=origin.not_captured,
        discarded=origin.discarded,
        side_effects=origin.side_effects,
        revertible=revertible,
        revertible_reason=reason,
        conflict_scope=content.scope,
        digest=_digest(sandbox_id, content, covered),
        root=paths.portable(content.tree.path),
        root_device=content.tree.device,
        root_inode=content.tree.inode,
        base_changed_during_run=bool(origin.base_changes),
        base_changes=[paths.portable(path) for path in origin.base_changes],
        parent=origin.parent,
        supersedes=origin.supersedes,
        reverts=origin.reverts,
        **_life(context, ttl_seconds),
    )


def _digest(sandbox_id: str, content: Content, covered: list[str]) -> str:
    return changeset_digest(
        sandbox_id=sandbox_id,
        root=(content.tree.device, content.tree.inode),
        paths=covered,
        scope=content.scope,
        base=content.base,
        changes=content.changes.every(),
        unstaged=content.unstaged,
    )


def _life(context: Context, ttl_seconds: int | None) -> dict[str, Any]:
    """Return when a changeset made now expires; the time asked for is clamped to 1 … the longest allowed."""
    caps = context.settings.caps
    asked = caps.ttl_default_seconds if ttl_seconds is None else ttl_seconds
    ttl = min(max(asked, 1), caps.ttl_max_seconds)
    moment = context.moment()
    return {
        "created_at": moment.wall,
        "expires_at": moment.wall + ttl,
        "boot_id": moment.boot_id,
        "expires_boot_ns": moment.boot_ns + ttl * _NANOSECONDS,
    }
