"""What the control plane and a node say to each other, as values (spec: generations, §5–§8). gRPC carries the same.

A call that concerns an execution carries its route evidence; every call carries the node's store id, as a reinstalled
node is another node. Refusals are ``FluxError`` with ``core.fence.details``; an error without them has an unknown
outcome.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from flux.core.fence import Ended, EndedAs, Fact, Teardown
from flux.core.lifecycle import NodeState
from flux.core.route import Execution, Route
from flux.core.sandbox import Sandbox


class ArtifactReference(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact by id and digest; ``durable``: the object store has it, so any node can restore it."""

    id: str
    digest: str
    durable: bool = False


class Activate(msgspec.Struct, frozen=True, kw_only=True):
    """Start one generation of a sandbox: restore exactly ``artifact``, or start cold if it is ``None`` (§5).

    ``create``: a Create rather than a Start; both share every decision.
    """

    sandbox_id: str
    node_store_id: str
    route: Route
    sandbox: Sandbox
    artifact: ArtifactReference | None = None
    create: bool = False

    def digest(self) -> str:
        """Return what makes two requests with the same attempt id the same request."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, create=False))).hexdigest()


class Activated(msgspec.Struct, frozen=True, kw_only=True):
    """A generation runs. ``credential`` opens its data plane, and ends with it; ``address`` is where that is."""

    route: Route
    credential: str
    address: str = ""


class Suspend(msgspec.Struct, frozen=True, kw_only=True):
    """Save an execution to an artifact and end it (§6). ``durable``: answer only when the upload is confirmed."""

    sandbox_id: str
    node_store_id: str
    execution: Execution


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """An execution is saved. ``new_job``: this call queued the upload; a repeated one does not."""

    generation: int
    artifact: ArtifactReference
    new_job: bool


class TearDown(msgspec.Struct, frozen=True, kw_only=True):
    """End one generation; after the answer it never starts on this node (§7)."""

    sandbox_id: str
    node_store_id: str
    execution: Execution


class TornDown(msgspec.Struct, frozen=True, kw_only=True):
    """What a teardown came to. ``outcome`` is never ``suspend`` or ``cancel``; ``pending`` means: ask again.

    ``artifact``: the one it produced (``suspended``), or the original one (``superseded(rolled_back)``).
    """

    outcome: Teardown
    artifact: ArtifactReference | None = None
    new_job: bool = False
    ended: tuple[Ended, ...] = ()
    floor: int = 0


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Delete an idle, backed-up sandbox from the node's disk (§8)."""

    sandbox_id: str
    node_store_id: str
    execution: Execution


class Destroy(msgspec.Struct, frozen=True, kw_only=True):
    """A user's kill: end everything of a sandbox, for ever; also where nothing is known of it (§8)."""

    sandbox_id: str
    node_store_id: str


class Destroyed(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of the sandbox is left, and its fence covers every generation."""

    sandbox_id: str


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Save a running execution to an artifact and let it run on: a snapshot, or the source of a fork (§6)."""

    sandbox_id: str
    node_store_id: str
    execution: Execution
    snapshot_id: str


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot is taken. It is never a candidate for the sandbox's current artifact."""

    artifact: ArtifactReference


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """End an execution without saving it; its last artifact stays current."""

    sandbox_id: str
    node_store_id: str
    execution: Execution


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """An execution ended. ``artifact``: what the sandbox wakes from, ``None`` if nothing was ever saved."""

    generation: int
    artifact: ArtifactReference | None = None


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The control plane's facts of sandboxes that this node has or had (§8)."""

    node_store_id: str
    facts: tuple[Fact, ...] = ()


class RowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox as a node has it. ``artifact``: what it rests on, and whether that is durable."""

    sandbox_id: str
    state: NodeState
    version: int
    floor: int
    generation: int | None = None
    pod_uid: str | None = None
    artifact: ArtifactReference | None = None
    ended: tuple[Ended, ...] = ()
    last_activity: float = 0.0


class ArtifactReport(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact as a node has it. ``size`` in bytes: all of its contents; ``stored``: those that only it brought."""

    id: str
    sandbox_id: str
    generation: int
    digest: str
    state: Literal["local", "uploading", "durable"]
    kind: Literal["suspend", "snapshot"]
    size: int
    stored: int
    local: bool
    created_at: float
    error: str | None = None


class Inventoried(msgspec.Struct, frozen=True, kw_only=True):
    """What the node holds after it has taken the facts into account."""

    rows: tuple[RowReport, ...]
    artifacts: tuple[ArtifactReport, ...] = ()
    done: tuple[str, ...] = ()


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The rows, fences' floors included, of all sandboxes that have a row."""

    rows: tuple[RowReport, ...]
    artifacts: tuple[ArtifactReport, ...] = ()


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A node: which store it is, what it can run, where its data plane listens. Sizes in bytes."""

    node_store_id: str
    kinds: tuple[str, ...]
    address: str
    disk_total: int
    disk_free: int
    running: int
    version: str


__all__ = [
    "Activate",
    "Activated",
    "ArtifactReference",
    "ArtifactReport",
    "Capture",
    "Captured",
    "Described",
    "Destroy",
    "Destroyed",
    "Ended",
    "EndedAs",
    "Evict",
    "Fact",
    "Inventoried",
    "Inventory",
    "Listed",
    "RowReport",
    "Stop",
    "Stopped",
    "Suspend",
    "Suspended",
    "TearDown",
    "TornDown",
]
