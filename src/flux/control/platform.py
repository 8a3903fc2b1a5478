"""Everything that can be asked of Flux: the control plane, and the engine of this process's node, as one object.

A sandbox's life, nodes and artifacts are the control plane's; commands, files and speculation go to the node that has
the sandbox's route. All methods are synchronous and thread-safe and raise ``FluxError`` only; the first argument is who
asks.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Protocol

from flux.control.dataplane import DataPlane, Execution
from flux.core.access import bearer_of
from flux.core.audit import AuditKind
from flux.core.control import Room
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.requests import Pause

if TYPE_CHECKING:
    from flux.control.plane import ControlPlane
    from flux.core.access import Actor, Key
    from flux.core.audit import AuditEvent, AuditFilter
    from flux.core.control import ArtifactStatus, Collected, Located, NodeStatus, SandboxFilter, SandboxStatus, Snapshot
    from flux.core.requests import AddNode, CreateKey, CreateSandbox, Fork, Resume, TakeSnapshot
    from flux.engine import results
    from flux.engine.engine import Engine
    from flux.ports.substrate import Check


_MIB = 1024 * 1024


class Contacts(Protocol):
    """Keeps the secrets by which the managers of other nodes are reached."""

    def add(self, name: str, token: str, authority: str | None) -> None:
        """Keep a node's token, and the certificate authority to trust; ``already_exists`` if there is one."""
        ...

    def forget(self, name: str) -> None:
        """Forget a node's secrets. Idempotent."""
        ...


class Platform(DataPlane):
    """One process's Flux.

    Args:
        engine: the engine of this process: its node's data plane, and everybody's keys and audit log.
        plane: the control plane.
        contacts: how other nodes are reached.
        local: the name of the node in this process, if there is one.
    """

    def __init__(self, engine: Engine, plane: ControlPlane, contacts: Contacts, local: str | None) -> None:
        super().__init__(engine, _Registered(plane, local))
        self._plane = plane
        self._contacts = contacts
        self._local = local

    # A sandbox's life

    def create_sandbox(self, actor: Actor, request: CreateSandbox, idempotency_key: str | None = None) -> SandboxStatus:
        """Create a sandbox and start it; the same key and request give the same sandbox again."""
        with self._engine.operation(actor, "sandbox.create"):
            return self._plane.create_sandbox(actor, request, idempotency_key)

    def list_sandboxes(
        self, actor: Actor, limit: int = 100, cursor: str | None = None, wanted: SandboxFilter | None = None
    ) -> results.Page[SandboxStatus]:
        """List the actor's sandboxes, newest first unless ``wanted`` says else; only those that are wanted."""
        with self._engine.operation(actor, "sandbox.list"):
            return self._plane.list_sandboxes(actor, limit, cursor, wanted)

    def get_sandbox(self, actor: Actor, sandbox: str) -> SandboxStatus:
        """Return a sandbox."""
        with self._engine.operation(actor, "sandbox.get"):
            return self._plane.get_sandbox(actor, sandbox)

    def delete_sandbox(self, actor: Actor, sandbox: str) -> SandboxStatus:
        """Delete a sandbox, in whatever state and stage; it never comes back."""
        with self._engine.operation(actor, "sandbox.delete"):
            return self._plane.delete_sandbox(actor, sandbox)

    def pause(self, actor: Actor, sandbox: str, request: Pause) -> SandboxStatus:
        """Save a sandbox and end its execution."""
        with self._engine.operation(actor, "sandbox.pause"):
            status = self._plane.pause(actor, sandbox, durable=request.durable)
        self._record(AuditKind.SANDBOX_PAUSE, actor, status)
        return status

    def resume(self, actor: Actor, sandbox: str, request: Resume) -> SandboxStatus:
        """Make a sandbox run; ``woke_from`` says from what."""
        with self._engine.operation(actor, "sandbox.resume"):
            status = self._plane.resume(actor, sandbox, request.timeout_seconds)
        if status.woke_from != "running":
            self._record(AuditKind.SANDBOX_RESUME, actor, status)
        return status

    def snapshot(self, actor: Actor, sandbox: str, request: TakeSnapshot) -> Snapshot:
        """Save a sandbox to an artifact of its own and let it run on."""
        with self._engine.operation(actor, "sandbox.snapshot"):
            made = self._plane.snapshot(actor, sandbox, request.name)
        self._record(AuditKind.SANDBOX_SNAPSHOT, actor, made.status, snapshot=made.artifact.id)
        return made

    def fork(self, actor: Actor, sandbox: str, request: Fork) -> list[SandboxStatus]:
        """Make running sandboxes of one as it is; all of them or none."""
        with self._engine.operation(actor, "sandbox.fork"):
            made = self._plane.fork(actor, sandbox, request.count, request.name, request.ttl_seconds)
        for status in made:
            self._record(AuditKind.SANDBOX_FORK, actor, status, of=sandbox)
        return made

    def elsewhere(self, actor: Actor, sandbox: str) -> Located | None:
        """Return where a sandbox's data plane is if its node is another process, else ``None``.

        What runs nowhere, or is not there, is refused by the operation itself, once all of the request is checked.
        """
        try:
            found = self._plane.locate(actor, sandbox)
        except FluxError as error:
            if error.code in (Code.ILLEGAL_STATE, Code.NOT_FOUND):
                return None
            raise
        return None if found.local else found

    def reach(self, sandbox_id: str, token: str | None, *, wake: bool) -> Located:
        """Return where a sandbox's data plane is, for the holder of its token; see ``ControlPlane.reach``."""
        with self._engine.operation(bearer_of(sandbox_id), "sandbox.get"):
            return self._plane.reach(sandbox_id, token, wake=wake)

    def reach_ports(self, sandbox_id: str, traffic_token: str | None) -> Located:
        """Return where a sandbox's ports are, for anybody or the holder of its traffic token; see ``ControlPlane``."""
        with self._engine.operation(bearer_of(sandbox_id), "sandbox.get"):
            return self._plane.reach_ports(sandbox_id, traffic_token)

    @property
    def executions(self) -> DataPlane:
        """The data plane of this process by execution (``ID.GENERATION``), for what was located already."""
        from flux.control.routed import Named

        return DataPlane(self._engine, Named())

    def tokens(self) -> list[tuple[str, str]]:
        """Return the id and the data-plane token of every sandbox, for what names none: for the daemon itself."""
        return self._plane.tokens()

    def set_timeout(self, actor: Actor, sandbox: str, ttl_seconds: int | None) -> SandboxStatus:
        """Let a sandbox's time-out be ``ttl_seconds`` from now, sooner or later than it was; ``None``: never."""
        with self._engine.operation(actor, "sandbox.resume"):
            return self._plane.set_timeout(actor, sandbox, ttl_seconds)

    def extend(self, actor: Actor, sandbox: str, seconds: int) -> SandboxStatus:
        """Let a sandbox that runs live at least so long from now; what is left is never shortened."""
        with self._engine.operation(actor, "sandbox.resume"):
            return self._plane.extend(actor, sandbox, seconds)

    def end_now(self, actor: Actor, sandbox: str) -> None:
        """Do to a sandbox that runs what its time-out would do now: kill it, or pause it."""
        status = self.get_sandbox(actor, sandbox)
        if status.state is ControlState.PAUSED:
            return
        if status.sandbox.on_timeout == "kill":
            self.delete_sandbox(actor, sandbox)
        else:
            self.pause(actor, sandbox, Pause())

    def connects(self) -> bool:
        """Tell whether sandboxes can be given the internet here; of nodes in other processes that is taken for true."""
        if self._local is None:
            return True
        context = self._engine.context
        found = context.substrates.get(context.settings.default_kind)
        return found is not None and found.capabilities().connects

    def has_template(self, name: str) -> bool:
        """Tell whether sandboxes can be made from the template of that name."""
        from flux.engine.lifecycle import create

        return create.has_template(self._engine.context, name)

    def room(self) -> Room:
        """Return what a sandbox without bounds of its own may use, of this machine."""
        settings = self._engine.context.settings
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Room(
            cpus=settings.cpus or float(os.cpu_count() or 1),
            memory_mib=settings.memory_mib or pages // _MIB,
            disk_mib=shutil.disk_usage(self._engine.context.stores.state.path).total // _MIB,
        )

    # Nodes

    def list_nodes(self, actor: Actor) -> list[NodeStatus]:
        """List all nodes, by name."""
        with self._engine.operation(actor, "node.list"):
            return self._plane.list_nodes(actor)

    def get_node(self, actor: Actor, name: str) -> NodeStatus:
        """Return a node."""
        with self._engine.operation(actor, "node.get"):
            return self._plane.get_node(actor, name)

    def add_node(self, actor: Actor, request: AddNode) -> NodeStatus:
        """Register a node, after asking it who it is."""
        with self._engine.operation(actor, "node.add"):
            self._contacts.add(request.name, request.token, request.authority)
            try:
                status = self._plane.add_node(actor, request.name, request.address)
            except BaseException:
                self._contacts.forget(request.name)
                raise
        self._engine.record(AuditKind.NODE_ADD, actor, details={"node": status.name, "address": status.address})
        return status

    def forget_node(self, actor: Actor, name: str) -> NodeStatus:
        """Declare everything on a node lost."""
        with self._engine.operation(actor, "node.forget"):
            status = self._plane.forget_node(actor, name)
        self._contacts.forget(name)
        self._engine.record(AuditKind.NODE_FORGET, actor, details={"node": status.name})
        return status

    # Artifacts

    def list_artifacts(self, actor: Actor, sandbox: str | None = None) -> list[ArtifactStatus]:
        """List the artifacts of the actor's sandboxes, newest first."""
        with self._engine.operation(actor, "artifact.list"):
            return self._plane.list_artifacts(actor, sandbox)

    def get_artifact(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Return an artifact by id, or a snapshot by name."""
        with self._engine.operation(actor, "artifact.get"):
            return self._plane.get_artifact(actor, artifact)

    def delete_artifact(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Forget a snapshot."""
        with self._engine.operation(actor, "artifact.delete"):
            status = self._plane.delete_artifact(actor, artifact)
        self._engine.record(
            AuditKind.ARTIFACT_DELETE, actor, sandbox_id=status.sandbox_id, details={"artifact": status.id}
        )
        return status

    def forget_snapshot(self, actor: Actor, snapshot: str) -> ArtifactStatus:
        """Forget a snapshot; what sandboxes rest on goes after them."""
        with self._engine.operation(actor, "artifact.delete"):
            status = self._plane.forget_snapshot(actor, snapshot)
        self._engine.record(
            AuditKind.ARTIFACT_DELETE, actor, sandbox_id=status.sandbox_id, details={"artifact": status.id}
        )
        return status

    def verify_artifact(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Hash every part of an artifact."""
        with self._engine.operation(actor, "artifact.verify"):
            return self._plane.verify(actor, artifact)

    def collect_artifacts(self, actor: Actor) -> Collected:
        """Remove from the object store what nothing refers to any more."""
        with self._engine.operation(actor, "artifact.collect"):
            return self._plane.collect(actor)

    # Audit, keys, health: the engine's own

    def audit(
        self, actor: Actor, filters: AuditFilter, limit: int = 100, cursor: str | None = None
    ) -> results.Page[AuditEvent]:
        """List audit lines, oldest first."""
        return self._engine.audit(actor, filters, limit, cursor)

    def wait_for_audit(
        self, actor: Actor, filters: AuditFilter, cursor: str | None, timeout_seconds: float
    ) -> results.Page[AuditEvent]:
        """List the audit lines after ``cursor``, waiting for the first if there are none."""
        return self._engine.wait_for_audit(actor, filters, cursor, timeout_seconds)

    def create_key(self, actor: Actor, request: CreateKey) -> results.NewKey:
        """Issue a key."""
        return self._engine.create_key(actor, request)

    def list_keys(self, actor: Actor) -> list[Key]:
        """List all keys, oldest first."""
        return self._engine.list_keys(actor)

    def revoke_key(self, actor: Actor, key: str) -> Key:
        """Revoke a key by id or name."""
        return self._engine.revoke_key(actor, key)

    def authenticate(self, token: str) -> Actor:
        """Return who a token belongs to."""
        return self._engine.authenticate(token)

    def doctor(self, actor: Actor) -> list[Check]:
        """Return what works on this machine."""
        return self._engine.doctor(actor)

    def _record(self, kind: AuditKind, actor: Actor, status: SandboxStatus, **details: object) -> None:
        told = {"generation": status.generation, "node": status.node, **details}
        if status.artifact is not None:
            told["artifact"] = status.artifact.id
        self._engine.record(kind, actor, sandbox_id=status.sandbox.id, details=told)


class _Registered:
    """Resolves references by the registry; what runs elsewhere is not done here."""

    def __init__(self, plane: ControlPlane, local: str | None) -> None:
        self._plane = plane
        self._local = local

    def running(self, actor: Actor, sandbox: str) -> Execution:
        """Return the execution of a sandbox that runs in this process."""
        found = self._plane.locate(actor, sandbox)
        if not found.local:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot reach the sandbox {found.sandbox_id} from here: it runs on the node {found.node}, to which a "
                "daemon forwards; start one: fluxctl daemon start",
                {"node": found.node},
            )
        return Execution(sandbox_id=found.sandbox_id, generation=found.generation)

    def known(self, actor: Actor, sandbox: str) -> str:
        """Return the id of a sandbox that ran last in this process: what was recorded of it is here."""
        status = self._plane.get_sandbox(actor, sandbox)
        if status.node != self._local:
            raise FluxError(
                Code.ILLEGAL_STATE,
                f"cannot read what was recorded of the sandbox {status.sandbox.id}: that is on the node {status.node}, "
                f"and the sandbox is {status.state.value}; resume it first",
                {"state": status.state.value, "node": status.node},
            )
        return status.sandbox.id
