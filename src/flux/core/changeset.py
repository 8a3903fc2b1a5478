"""Changesets: what a speculation changed, and the states a decision takes it through (spec: speculation)."""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Literal

import msgspec

from flux.core import paths
from flux.core.machine import Machine
from flux.core.manifest import EntryType, Fingerprint


def _nothing() -> None:
    """The default of a field that JSON holds even when it is empty: only plain defaults are left out."""


def _no_words() -> tuple[str, ...]:
    return ()


class State(StrEnum):
    """Where a changeset is in its life (spec: speculation)."""

    PENDING = "pending"
    APPROVED = "approved"
    APPLIED = "applied"
    REJECTED = "rejected"
    EXPIRED = "expired"
    FAILED = "failed"


class Event(StrEnum):
    """What can happen to a changeset."""

    APPROVE = "approve"
    REJECT = "reject"
    EXPIRE = "expire"
    APPLY = "apply"
    FAIL = "fail"


FINAL = frozenset({State.APPLIED, State.REJECTED, State.EXPIRED, State.FAILED})

LIFE: Machine[State, Event] = Machine(
    "changeset",
    {
        (State.PENDING, Event.APPROVE): State.APPROVED,
        (State.PENDING, Event.REJECT): State.REJECTED,
        (State.PENDING, Event.EXPIRE): State.EXPIRED,
        (State.APPROVED, Event.APPLY): State.APPLIED,
        (State.APPROVED, Event.REJECT): State.REJECTED,
        (State.APPROVED, Event.EXPIRE): State.EXPIRED,
        (State.APPROVED, Event.FAIL): State.FAILED,
    },
)

RunVia = Literal["workspace-copy", "fork", "snapshot", "revert"]
ConflictScope = Literal["all", "touched"]
ChangeKind = Literal["added", "modified", "deleted", "type_changed"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One side (before or after) of a change.

    Units: ``mode`` four octal digits as text, ``size`` bytes, ``mtime_ns`` nanoseconds since the epoch, ``xattrs``
    name → base64 of the value, ``link_group`` the same number for all names of one hard-linked inode.
    """

    type: EntryType
    mode: str
    uid: int
    gid: int
    size: int
    mtime_ns: int
    digest: str | None = None
    target: str | None = None
    target_base64: str | None = None
    link_group: int | None = None
    xattrs: dict[str, str] = {}
    rdev: int = 0

    @classmethod
    def of(cls, fingerprint: Fingerprint, *, link_group: int | None = None) -> Entry:
        """Return the reviewable form of a fingerprint."""
        target, encoded = (None, None) if fingerprint.target is None else paths.to_json(fingerprint.target)
        return cls(
            type=fingerprint.type,
            mode=f"{fingerprint.mode:04o}",
            uid=fingerprint.uid,
            gid=fingerprint.gid,
            size=fingerprint.size,
            mtime_ns=fingerprint.mtime_ns,
            digest=fingerprint.digest,
            target=target,
            target_base64=encoded,
            link_group=link_group,
            xattrs={
                paths.to_json(key)[0]: base64.b64encode(value).decode("ascii") for key, value in fingerprint.xattrs
            },
            rdev=fingerprint.rdev,
        )

    @property
    def mode_bits(self) -> int:
        """The permission bits as a number."""
        return int(self.mode, 8)

    @property
    def link_target(self) -> str | None:
        """A symlink's exact target, in the lossless text form of ``core.paths``."""
        return None if self.target is None else paths.from_json(self.target, self.target_base64)

    @property
    def xattr_values(self) -> dict[str, bytes]:
        """The extended attributes' values."""
        return {key: base64.b64decode(value) for key, value in self.xattrs.items()}


class Staged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the new content of a regular file is kept: a blob of the changeset, or content that the base holds.

    Exactly one of ``blob`` (a file name in ``blobs/``) and ``reference`` (a workspace path of the base, whose content
    has the entry's digest) is set.
    """

    blob: str | None = None
    reference: str | None = None
    reference_base64: str | None = None

    @property
    def reference_path(self) -> str | None:
        """The exact path of the base entry that holds the content."""
        return None if self.reference is None else paths.from_json(self.reference, self.reference_base64)


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the tree that a speculation changed.

    ``attributes`` names what differs: ``content``, ``mode``, ``owner``, ``xattrs``, ``target``, ``type``, ``rdev``,
    ``links`` (the hard-link group). ``risks`` are flags of spec: speculation.
    """

    path: str
    path_base64: str | None = None
    before: Entry | None = msgspec.field(default_factory=_nothing)
    after: Entry | None = msgspec.field(default_factory=_nothing)
    attributes: tuple[str, ...] = msgspec.field(default_factory=_no_words)
    staged: Staged | None = msgspec.field(default_factory=_nothing)
    risks: tuple[str, ...] = msgspec.field(default_factory=_no_words)

    @property
    def location(self) -> str:
        """The exact workspace path, in the lossless text form of ``core.paths``."""
        return paths.from_json(self.path, self.path_base64)

    @property
    def kind(self) -> ChangeKind:
        """Which of the four lists the change stands in."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        return "modified" if self.before.type is self.after.type else "type_changed"


class Changes(msgspec.Struct, kw_only=True):
    """All changes, by kind, each list sorted by path; ``unchanged`` counts the base's other entries."""

    added: list[Change] = []
    modified: list[Change] = []
    deleted: list[Change] = []
    type_changed: list[Change] = []
    unchanged: int = 0

    def every(self) -> list[Change]:
        """Return all changes sorted by path."""
        return sorted(
            [*self.added, *self.modified, *self.deleted, *self.type_changed],
            key=lambda change: change.location,
        )

    @classmethod
    def of(cls, changes: list[Change], *, unchanged: int) -> Changes:
        """Sort ``changes`` into their lists."""
        result = cls(unchanged=unchanged)
        lists = {
            "added": result.added,
            "modified": result.modified,
            "deleted": result.deleted,
            "type_changed": result.type_changed,
        }
        for change in sorted(changes, key=lambda change: change.location):
            lists[change.kind].append(change)
        return result


class Unstaged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path that the changeset names but cannot carry, with the reason; it blocks an apply (422)."""

    path: str
    reason: str
    path_base64: str | None = None
    size: int | None = None

    @property
    def location(self) -> str:
        """The exact workspace path."""
        return paths.from_json(self.path, self.path_base64)


class Noted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path that is reported only: a skipped socket, a nested mount that was not captured."""

    path: str
    reason: str
    path_base64: str | None = None


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """What the run wrote outside ``paths`` and what was thrown away with it. ``size`` in bytes."""

    place: str
    entries: int
    size: int


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Captured output: printable text (with a truncation marker), and the exact kept bytes if they are not UTF-8."""

    text: str
    base64: str | None = None
    size: int = 0


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic to one destination that the kernel saw during the run (spec: network)."""

    proto: str
    dst: str
    verdict: Literal["allowed", "refused"]
    port: int | None = None
    name: str | None = None
    connections: int = 1


class SideEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What the run may have done, or did, beyond its files (spec: speculation). ``observed`` is None if unobserved."""

    egress: Literal["blocked", "allow_listed", "unrestricted"]
    enforced: bool
    destinations: list[str] = []
    observed: list[Flow] | None = None
    replayable: list[str] = []
    non_replayable: list[str] = []


class Changeset(msgspec.Struct, kw_only=True):
    """The record in ``meta.json``: everything but ``changes``, which never change and live in ``changes.json``.

    Times are wall-clock seconds since the epoch. ``expires_boot_ns`` with ``boot_id`` measures expiry by the boot
    clock within one boot (spec: speculation).
    """

    id: str
    sandbox_id: str
    state: State
    command: str
    argv: list[str] | None
    created_at: float
    expires_at: float
    boot_id: str
    expires_boot_ns: int
    run_via: RunVia
    copy_engine: str | None
    copy_engine_reason: str | None
    paths: list[str]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    stdout: Output
    stderr: Output
    counts: dict[str, int]
    unstaged: list[Unstaged]
    skipped: list[Noted]
    not_captured: list[Noted]
    discarded: list[Discarded]
    side_effects: SideEffects
    revertible: bool
    revertible_reason: str | None
    conflict_scope: ConflictScope
    digest: str
    root: str
    root_device: int
    root_inode: int
    base_changed_during_run: bool = False
    base_changes: list[str] = []
    warnings: list[str] = []
    only: list[str] | None = None
    decided_by: str | None = None
    decided_at: float | None = None
    applied_at: float | None = None
    finished_at: float | None = None
    comment: str | None = None
    error: str | None = None
    parent: str | None = None
    supersedes: str | None = None
    superseded_by: str | None = None
    reverts: str | None = None
    reverted_by: str | None = None
