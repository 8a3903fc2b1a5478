"""What callers see: the JSON forms of the engine's results, the same for REST, ``--json`` and the embedded client.

The functions that make them of the engine's results are in ``api.present``. Each view is a struct, so that OpenAPI's
schemas are read off it and a large changeset is encoded once, straight from the structs. Times are RFC 3339 in UTC.
Bytes that are not UTF-8 travel as a printable form beside a ``…_base64`` field that is there only then
(spec: speculation).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from flux.core.access import Role
from flux.core.changeset import (
    ChangeKind,
    Changes,
    ConflictScope,
    Discarded,
    Entry,
    Noted,
    RunVia,
    SideEffects,
    State,
    Unstaged,
)
from flux.core.control import WokeFrom
from flux.ports.substrate import Check


class View(msgspec.Struct):
    """A JSON object of a reply."""


class ErrorView(View, kw_only=True):
    """The shape of every refusal and failure."""

    code: str
    message: str
    details: dict[str, Any]


class Deleted(View, kw_only=True):
    """What was deleted."""

    id: str
    deleted: bool = True


class OutputFields(View, kw_only=True):
    """Captured output as text; ``…_base64`` holds the exact kept bytes where they are not UTF-8."""

    stdout: str
    stderr: str
    stdout_base64: str | UnsetType = UNSET
    stderr_base64: str | UnsetType = UNSET
    stdout_bytes: int
    stderr_bytes: int


class ChangesetSummary(View, kw_only=True):
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
    """A changeset with everything a reviewer needs (spec: speculation)."""

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


class ChangesetPage(View, kw_only=True):
    """One page of changesets, newest first."""

    items: list[ChangesetSummary]
    next_cursor: str | None


class MountView(View, kw_only=True):
    """A read-only directory of the host that a sandbox sees."""

    source: str
    target: str


class SandboxView(View, kw_only=True):
    """A sandbox. Sizes in MiB. ``workspace`` is the bound directory, ``place`` where the sandbox itself sees it.

    ``generation``: its executions, counted. ``node``: where it runs, or ran last. ``artifact_id``: what it wakes from,
    and ``artifact_durable`` whether the object store has it. ``woke_from``: what the execution that runs came from.
    ``stopped``: it is paused because its execution ended without being saved. ``snapshot``: the artifact that it was
    made from, if it was. ``internet``: it may reach any public address. ``auto_resume``: use of its data plane by its
    token wakes it.
    """

    id: str
    name: str | None
    kind: str
    layout: str
    state: str
    workspace: str | None
    template: str | None
    snapshot: str | None
    place: str
    net_ports: list[int]
    internet: bool
    mounts: list[MountView]
    environment: dict[str, str]
    memory_mib: int | None
    cpus: float | None
    pids: int | None
    created_at: str
    expires_at: str | None
    ttl_seconds: int | None
    on_timeout: str
    auto_resume: bool
    metadata: dict[str, str]
    owner: str | None
    baseline_at: str | None
    generation: int
    node: str | None
    artifact_id: str | None
    artifact_durable: bool
    woke_from: WokeFrom | None
    stopped: bool


class SandboxPage(View, kw_only=True):
    """One page of sandboxes, newest first."""

    items: list[SandboxView]
    next_cursor: str | None


class SandboxList(View, kw_only=True):
    """Sandboxes, all of them in one reply."""

    items: list[SandboxView]


class MetricView(View, kw_only=True):
    """What a sandbox used at a moment. Sizes in bytes.

    ``cpu_used_pct``: of all the ``cpu_count`` processors that it may use, since the sample before; 0 to 100.
    ``memory_cache``: of files, beside ``memory_used``. The disk is the file system's, which sandboxes share.
    """

    at: str
    generation: int
    cpu_count: float
    cpu_used_pct: float
    memory_used: int
    memory_total: int
    memory_cache: int
    disk_used: int
    disk_total: int


class MetricList(View, kw_only=True):
    """The samples of a sandbox, oldest first."""

    sandbox_id: str
    items: list[MetricView]


class ArtifactView(View, kw_only=True):
    """An artifact. Sizes in bytes: ``size`` of all its contents, ``stored`` of those that only it brought.

    ``kind``: ``suspend`` made by a pause, ``snapshot`` made on demand, with its ``name``. ``node``: where it is local.
    ``durable``: the object store has all of it. ``current``: its sandbox wakes from it. ``error``: of its upload.
    """

    id: str
    digest: str
    sandbox_id: str
    generation: int
    kind: Literal["suspend", "snapshot"]
    name: str | None
    created_at: str
    node: str | None
    durable: bool
    size: int
    stored: int
    current: bool
    error: str | None


class ArtifactList(View, kw_only=True):
    """Artifacts, newest first."""

    items: list[ArtifactView]


class CollectedView(View, kw_only=True):
    """What a collection did: objects marked for the next one, objects deleted, and their ``bytes``."""

    marked: int
    deleted: int
    bytes: int


class NodeView(View, kw_only=True):
    """A node. Sizes in bytes. ``address``: of its manager; ``data_address``: of its data plane.

    ``reachable``: it answered when it was last asked, which ``seen_at`` is the time of if it did. ``forgotten_at``: an
    operator declared everything on it lost.
    """

    name: str
    address: str
    node_store_id: str
    kinds: list[str]
    data_address: str
    disk_total: int
    disk_free: int
    running: int
    version: str
    reachable: bool
    added_at: str
    seen_at: str | None
    forgotten_at: str | None


class NodeList(View, kw_only=True):
    """All nodes, by name."""

    items: list[NodeView]


class ExecView(OutputFields):
    """How a command ended, with its output. Exactly one of ``exit_code`` and ``signal`` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int


class Written(View, kw_only=True):
    """A file that was written: where, and how many bytes. ``path_base64`` holds the exact bytes of an odd name."""

    path: str
    size: int
    path_base64: str | UnsetType = UNSET


class ListedEntry(View, kw_only=True):
    """One entry of a directory."""

    name: str
    entry: Entry
    name_base64: str | UnsetType = UNSET


class Listing(View, kw_only=True):
    """A directory's entries, sorted by name."""

    path: str
    entries: list[ListedEntry]
    path_base64: str | UnsetType = UNSET


class BaselineView(View, kw_only=True):
    """The remembered tree: when, how many entries, and their ``size`` in bytes."""

    sandbox_id: str
    created_at: str
    entries: int
    size: int
    not_captured: list[Noted]


class ChangesView(View, kw_only=True):
    """What changed since the baseline."""

    sandbox_id: str
    counts: dict[str, int]
    changes: Changes


class DryRunView(OutputFields):
    """What a command did in a throwaway copy of which nothing was kept."""

    sandbox_id: str
    command: str
    copy_engine: str
    copy_engine_reason: str
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
    base_changed_during_run: bool
    base_changes: list[str]


class FileDiffView(View, kw_only=True):
    """One entry's difference: a unified diff as ``text``, or a ``note`` that says why there is none to show."""

    path: str
    kind: ChangeKind
    before: Entry | None
    after: Entry | None
    text: str | None
    note: str | None
    path_base64: str | UnsetType = UNSET


class DiffView(View, kw_only=True):
    """The differences of a changeset's entries, sorted by path."""

    changeset_id: str
    files: list[FileDiffView]


class ComparedEntry(View, kw_only=True):
    """What each changeset (by id) makes of one path; a changeset that leaves it alone is absent."""

    path: str
    kinds: dict[str, ChangeKind]
    after: dict[str, Entry | None]
    same: bool
    path_base64: str | UnsetType = UNSET


class Comparison(View, kw_only=True):
    """Changesets of one sandbox side by side, entries sorted by path."""

    changesets: list[ChangesetSummary]
    entries: list[ComparedEntry]


class KeyView(View, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    created_at: str
    revoked_at: str | None


class NewKey(View, kw_only=True):
    """A key just made. ``key`` is the secret: it is shown here and never again."""

    key: str
    id: str
    name: str
    role: Role
    created_at: str


class KeyList(View, kw_only=True):
    """All keys."""

    items: list[KeyView]


class AuditPage(View, kw_only=True):
    """One page of audit lines, oldest first; ``next_cursor`` is always there: later lines come after it.

    Each line has ``id``, ``time``, ``event``, ``actor``, ``role``, the ``sandbox_id`` (again as ``vm_id``) and
    ``changeset`` it is about, and what else the event tells.
    """

    items: list[dict[str, Any]]
    next_cursor: str | None


class Findings(View, kw_only=True):
    """What works on this machine. ``ok`` is false if something that is required does not."""

    ok: bool
    checks: list[Check]


class Health(View, kw_only=True):
    """That the engine answers, how many sandboxes there are and how many run."""

    status: Literal["ok"]
    version: str
    sandboxes: int
    running: int
