"""The control plane as one object: what a sandbox is, where it runs, and from what it wakes (spec: generations, §9).

Every method is synchronous, thread-safe and raises ``FluxError`` only. The first argument is who asks: the role must
allow the operation (``denied``), and sandboxes of others do not exist for agents and users (``not_found``). A sandbox
is named by its id or its name. Each method drives a generator of a module beside this one (``control.calls``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flux.core.access import Actor, permit
from flux.core.control import (
    Adoption,
    ArtifactStatus,
    Collected,
    Located,
    NodeStatus,
    Reconciled,
    SandboxFilter,
    SandboxStatus,
    Snapshot,
)
from flux.core.requests import CreateSandbox

if TYPE_CHECKING:
    from flux.control.context import Control
    from flux.control.drive import Driver
    from flux.engine.results import Page


class ControlPlane:
    """One process's control plane over a registry; several processes may share one registry.

    Args:
        context: the registry, time, identities, placement, settings (``control.context``).
        driver: carries requests to the nodes (``control.drive``).
    """

    def __init__(self, context: Control, driver: Driver) -> None:
        self._context = context
        self._driver = driver

    # Sandboxes

    def create_sandbox(self, actor: Actor, request: CreateSandbox, idempotency_key: str | None = None) -> SandboxStatus:
        """Create a sandbox and start its first generation; the same key and request give the same sandbox again.

        Raises:
            FluxError: ``invalid``, ``already_exists`` (the name, or the key with another request), ``exhausted``,
                ``unavailable``; nothing is left of a sandbox that could not be started.
        """
        from flux.control import create

        permit(actor, "sandbox.create")
        return self._driver.run(create.create(self._context, actor, request, idempotency_key))

    def list_sandboxes(
        self,
        actor: Actor,
        limit: int = 100,
        cursor: str | None = None,
        wanted: SandboxFilter | None = None,
    ) -> Page[SandboxStatus]:
        """List the actor's sandboxes, newest first unless ``wanted`` says else; only those that are wanted.

        A page goes on where the last one ended by its cursor, with the same filter, whatever was made or deleted
        meanwhile.
        """
        from flux.control import views

        permit(actor, "sandbox.list")
        return views.list_sandboxes(self._context, actor, limit, cursor, wanted or SandboxFilter())

    def get_sandbox(self, actor: Actor, sandbox: str) -> SandboxStatus:
        """Return a sandbox."""
        from flux.control import views

        permit(actor, "sandbox.get")
        return self._tokened(views.get_sandbox(self._context, actor, sandbox))

    def delete_sandbox(self, actor: Actor, sandbox: str) -> SandboxStatus:
        """Delete a sandbox, in whatever state and stage; it never comes back. Nodes out of reach do it later."""
        from flux.control import kill

        permit(actor, "sandbox.delete")
        return self._driver.run(kill.delete(self._context, actor, sandbox))

    def pause(self, actor: Actor, sandbox: str, *, durable: bool = False) -> SandboxStatus:
        """Save a sandbox and end its execution; nothing happens to one that is paused.

        Args:
            actor: who asks.
            sandbox: which one.
            durable: return only when the object store has all of it.

        Raises:
            FluxError: ``unavailable`` (try again), ``unknown_outcome`` (the node does not answer; it is gone on with),
                ``not_applicable`` (``durable`` for a bound directory).
        """
        from flux.control import pause

        permit(actor, "sandbox.pause")
        return self._driver.run(pause.pause(self._context, actor, sandbox, durable=durable))

    def resume(self, actor: Actor, sandbox: str, timeout_seconds: int | None = None) -> SandboxStatus:
        """Make a sandbox run; ``woke_from`` says from what.

        Args:
            actor: who asks.
            sandbox: which one.
            timeout_seconds: it is to live at least so long from here; what is left is never shortened.

        Raises:
            FluxError: ``unavailable`` within ``wake_timeout_seconds``; it stays paused on its original artifact.
        """
        from flux.control import wake

        permit(actor, "sandbox.resume")
        return self._tokened(self._driver.run(wake.connect(self._context, actor, sandbox, timeout_seconds)))

    def snapshot(self, actor: Actor, sandbox: str, name: str | None = None) -> Snapshot:
        """Save a sandbox to an artifact of its own and let it run on; ``not_applicable`` for a bound directory."""
        from flux.control import snapshot

        permit(actor, "sandbox.snapshot")
        return self._driver.run(snapshot.snapshot(self._context, actor, sandbox, name))

    def fork(
        self, actor: Actor, sandbox: str, count: int = 1, name: str | None = None, ttl_seconds: int | None = None
    ) -> list[SandboxStatus]:
        """Make ``count`` running sandboxes from a sandbox as it is now, or as it was paused; all of them or none.

        ``ttl_seconds``: their time-out, if it is another than that of the source.
        """
        from flux.control import snapshot

        permit(actor, "sandbox.fork")
        return self._driver.run(snapshot.fork(self._context, actor, sandbox, count, name, ttl_seconds))

    def locate(self, actor: Actor, sandbox: str) -> Located:
        """Return where a running sandbox's data plane is; ``illegal_state`` (resume it first) if it does not run."""
        from flux.control import views

        permit(actor, "sandbox.get")
        return views.locate(self._context, actor, sandbox)

    def reach(self, sandbox_id: str, token: str | None, *, wake: bool) -> Located:
        """Return where the data plane of a sandbox is, for the holder of its token.

        Args:
            sandbox_id: its id; a name is none.
            token: what the caller holds; ``None`` if that is not to be checked.
            wake: wake it if it is paused and may be woken by use, and join a wake that is under way.

        Raises:
            FluxError: ``not_found`` if it does not run, ``unauthenticated`` for a wrong token, and what a wake raises.
        """
        from flux.control import reach

        return self._driver.run(reach.reach(self._context, sandbox_id, token, wake_it=wake))

    def reach_ports(self, sandbox_id: str, traffic_token: str | None) -> Located:
        """Return where the ports of a sandbox are, waking it as ``reach`` does.

        Args:
            sandbox_id: its id; a name is none.
            traffic_token: what the caller holds; needed for a sandbox whose ports are not public.

        Raises:
            FluxError: ``not_found`` if it does not run, ``denied`` without a token that is needed, ``unauthenticated``
                for a wrong one, and what a wake raises.
        """
        from flux.control import reach

        return self._driver.run(reach.reach_ports(self._context, sandbox_id, traffic_token))

    def tokens(self) -> list[tuple[str, str]]:
        """Return the id and the token of every sandbox that is not being deleted."""
        from flux.control import reach

        return reach.tokens(self._context)

    def _tokened(self, status: SandboxStatus) -> SandboxStatus:
        from flux.control import reach

        return reach.with_token(self._context, status)

    def set_timeout(self, actor: Actor, sandbox: str, ttl_seconds: int | None) -> SandboxStatus:
        """Let a sandbox's time-out be ``ttl_seconds`` from now, sooner or later than it was; ``None``: never."""
        from flux.control import timeouts

        permit(actor, "sandbox.resume")
        return timeouts.set_timeout(self._context, actor, sandbox, ttl_seconds)

    def extend(self, actor: Actor, sandbox: str, seconds: int) -> SandboxStatus:
        """Let a sandbox that runs live at least so long from now; nothing happens to one that does not run."""
        from flux.control import timeouts

        permit(actor, "sandbox.resume")
        return timeouts.extend(self._context, actor, sandbox, seconds)

    # Nodes

    def add_node(self, actor: Actor, name: str, address: str) -> NodeStatus:
        """Register a node by the address of its manager, after asking it who it is; ``already_exists`` for the name."""
        from flux.control import nodes

        permit(actor, "node.add")
        return self._driver.run(nodes.add(self._context, name, address))

    def list_nodes(self, actor: Actor) -> list[NodeStatus]:
        """List all nodes, forgotten ones too, by name."""
        from flux.control import nodes

        permit(actor, "node.list")
        return nodes.every(self._context)

    def get_node(self, actor: Actor, name: str) -> NodeStatus:
        """Return a node."""
        from flux.control import nodes

        permit(actor, "node.get")
        return nodes.get(self._context, name)

    def forget_node(self, actor: Actor, name: str) -> NodeStatus:
        """Declare everything on a node lost: what ran there is stopped and wakes from what is durable (§9)."""
        from flux.control import nodes

        permit(actor, "node.forget")
        return nodes.forget(self._context, actor, name)

    # Artifacts

    def list_artifacts(self, actor: Actor, sandbox: str | None = None) -> list[ArtifactStatus]:
        """List the artifacts of the actor's sandboxes, of ``sandbox`` if given, newest first."""
        from flux.control import artifacts

        permit(actor, "artifact.list")
        return artifacts.every(self._context, actor, sandbox)

    def get_artifact(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Return an artifact by its id, or a snapshot by its name."""
        from flux.control import artifacts

        permit(actor, "artifact.get")
        return artifacts.get(self._context, actor, artifact)

    def delete_artifact(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Forget a snapshot, which is collected later; ``conflict`` while a sandbox rests on it."""
        from flux.control import artifacts

        permit(actor, "artifact.delete")
        return artifacts.delete(self._context, actor, artifact)

    def forget_snapshot(self, actor: Actor, snapshot: str) -> ArtifactStatus:
        """Forget a snapshot, by id or name; what sandboxes rest on goes after them. ``not_found`` if it is none."""
        from flux.control import artifacts

        permit(actor, "artifact.delete")
        return artifacts.forget(self._context, actor, snapshot)

    def verify(self, actor: Actor, artifact: str) -> ArtifactStatus:
        """Hash every part of an artifact, where it lies; ``internal`` (data loss) names what is not what it was."""
        from flux.control import artifacts

        permit(actor, "artifact.verify")
        return artifacts.verify(self._context, actor, artifact)

    def collect(self, actor: Actor) -> Collected:
        """Remove from the object store what nothing refers to any more, in two phases (§6)."""
        from flux.control import artifacts

        permit(actor, "artifact.collect")
        return artifacts.collect(self._context)

    # The control plane's own life

    def sweep(self) -> Reconciled:
        """Time-outs, inventories of all nodes, and whatever was begun and is not finished. Called now and then."""
        from flux.control import sweep

        return self._driver.run(sweep.sweep(self._context))

    def recover(self, adopt: Iterable[Adoption] = ()) -> Reconciled:
        """Put right what a crash left behind, and adopt sandboxes that the registry never heard of."""
        from flux.control import sweep

        return self._driver.run(sweep.recover(self._context, adopt))

    def close(self) -> None:
        """Close the registry. Idempotent."""
        self._context.registry.close()
