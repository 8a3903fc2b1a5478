"""What the control plane says of sandboxes, nodes and artifacts, as values (spec: generations, §9)."""

from __future__ import annotations

from typing import Literal

import msgspec

from flux.core.lifecycle import ControlState
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox

#: What a sandbox that runs came from. ``last_artifact_after_stop``: its execution had ended by itself or with its host.
WokeFrom = Literal["running", "artifact", "last_artifact_after_stop", "cold"]


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as its owner sees it.

    ``sandbox`` has the time-out as it is now. ``node``: where it runs, or ran last. ``artifact``: what it wakes from,
    ``None`` if nothing was ever saved. ``woke_from``: of the execution that runs; ``running`` in the answer of a
    ``resume`` that had nothing to do. ``stopped``: paused because its execution ended without being saved.
    ``token``: what opens its data plane to whoever holds it; a sandbox that is older than tokens may have none yet.
    """

    sandbox: Sandbox
    state: ControlState
    generation: int
    node: str | None = None
    artifact: ArtifactReference | None = None
    woke_from: WokeFrom | None = None
    stopped: bool = False
    token: str | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox may use that has no bounds of its own: whole processors' time, and MiB."""

    cpus: float
    memory_mib: int
    disk_mib: int


class SandboxFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sandboxes to list; what is ``None`` does not narrow. Time in wall-clock seconds.

    ``metadata``: they have all of these values. ``template``: its name. ``started_after``: made later than that.
    ``lived``: only those that ever ran, not those that are being made. ``oldest_first``: in that order.
    """

    states: tuple[ControlState, ...] | None = None
    metadata: dict[str, str] = {}
    template: str | None = None
    started_after: float | None = None
    lived: bool = False
    oldest_first: bool = False

    def takes(self, sandbox: Sandbox) -> bool:
        """Tell whether a sandbox is wanted, as far as its record tells."""
        return (
            self.metadata.items() <= sandbox.metadata.items()
            and self.template in (None, sandbox.template_name, sandbox.snapshot)
            and (self.started_after is None or sandbox.created_at > self.started_after)
        )


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running sandbox's data plane is. ``local``: its node is in this process; ``address`` is empty then."""

    sandbox_id: str
    node: str
    generation: int
    pod_uid: str
    credential: str
    address: str
    local: bool


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the control plane knows it. Sizes in bytes, times in wall-clock seconds.

    ``address``: of its manager. ``data_address``: where its data plane listens. ``forgotten_at``: an operator declared
    everything on it lost.
    """

    name: str
    address: str
    node_store_id: str
    added_at: float
    kinds: tuple[str, ...] = ()
    data_address: str = ""
    disk_total: int = 0
    disk_free: int = 0
    running: int = 0
    version: str = ""
    seen_at: float | None = None
    reachable: bool = True
    forgotten_at: float | None = None


class ArtifactStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact as the control plane knows it. Sizes in bytes, time in wall-clock seconds.

    ``kind``: ``suspend`` made by a pause, ``snapshot`` made on demand, with the ``name`` it was given. ``node``: where
    it is local. ``durable``: the object store has all of it. ``current``: its sandbox wakes from it.
    """

    id: str
    digest: str
    sandbox_id: str
    generation: int
    kind: Literal["suspend", "snapshot"]
    created_at: float
    name: str | None = None
    node: str | None = None
    durable: bool = False
    size: int = 0
    stored: int = 0
    current: bool = False
    error: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot came to. ``status``: of its sandbox, which runs on or stays paused."""

    artifact: ArtifactStatus
    status: SandboxStatus


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection of the object store did: objects marked for the next time, deleted, and bytes freed."""

    marked: int = 0
    deleted: int = 0
    bytes: int = 0


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that this node has and the registry has never heard of: made before there was one (§2).

    ``running``: its row on the node says so. ``artifact``: what it rests on.
    """

    sandbox: Sandbox
    running: bool
    generation: int
    attempt_id: str
    pod_uid: str
    artifact: ArtifactReference | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What ``sweep`` or ``recover`` did: ids of sandboxes, names of nodes, and what could not be done."""

    timed_out: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
