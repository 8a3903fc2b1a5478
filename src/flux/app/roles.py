"""What a process is made of, by its role: a node, a control plane, or both; and in which order they begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from flux.core.control import Adoption, Reconciled
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState

if TYPE_CHECKING:
    from flux.app.contacts import Contacts
    from flux.app.work import Task
    from flux.control.plane import ControlPlane
    from flux.control.platform import Platform
    from flux.engine.engine import Engine
    from flux.engine.node.manager import NodeManager

Role: TypeAlias = Literal["all", "control", "node"]
_UPLOAD_SECONDS = 1.0
_SWEEP_SECONDS = 30.0
_RECONCILE_SECONDS = 60.0
#: A row that a failure left in flight keeps its sandbox's users waiting.
_MEND_SECONDS = 5.0


class NodeRole(msgspec.Struct, frozen=True):
    """The node of this process. ``uploads``: there is an object store."""

    manager: NodeManager
    uploads: bool

    def check_credential(self, sandbox_id: str, generation: int, credential: str) -> None:
        """Let the holder of the credential of the execution that runs pass; see ``control.routed.Credentials``."""
        from flux.engine.node import credentials

        credentials.check(self.manager.node, sandbox_id, generation, credential)


class ControlRole(msgspec.Struct, frozen=True):
    """The control plane of this process. ``local``: the name that it knows this process's node by."""

    plane: ControlPlane
    contacts: Contacts
    platform: Platform
    local: str | None


class Runtime:
    """An opened state directory and what works on it.

    Args:
        engine: its engine; without substrates where there is no node.
        node: its node, if it has one.
        control: its control plane, if it has one.
        release: gives up what executions had, when none is left.
    """

    def __init__(
        self,
        engine: Engine,
        node: NodeRole | None,
        control: ControlRole | None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._release = release
        self.engine = engine
        self.node = node
        self.control = control

    @property
    def platform(self) -> Platform:
        """What users' calls go to. Raises ``FluxError`` ``internal`` on a node: it has none."""
        if self.control is None:
            raise FluxError(Code.INTERNAL, "cannot serve users here: this is a node; ask its control plane")
        return self.control.platform

    def recover(self) -> dict[str, Any]:
        """Put right what a crash left behind: the node first, as the control plane asks it. Called before all else."""
        found: dict[str, Any] = {"engine": self.engine.recover()}
        if self.control is not None:
            found["control"] = self._recover_control(self.control)
        return {name: msgspec.to_builtins(value) for name, value in found.items()}

    def _recover_control(self, control: ControlRole) -> Reconciled:
        return control.plane.recover(self._adoptions())

    def _adoptions(self) -> Iterable[Adoption]:
        """Return the sandboxes that this node has; the registry adopts those that it has never heard of."""
        if self.node is None:
            return ()
        from flux.engine.node.holdings import holdings

        return [
            Adoption(
                sandbox=sandbox,
                running=row.state is NodeState.RUNNING,
                generation=row.generation or 0,
                attempt_id=row.attempt_id or "",
                pod_uid=row.pod_uid or "",
                artifact=artifact,
            )
            for sandbox, row, artifact in holdings(self.node.manager.node)
        ]

    def tasks(self, inventory_seconds: float) -> list[Task]:
        """Return what a daemon does beside answering."""
        from flux.app.work import Task

        found = [Task(name="sweep", act=self.engine.sweep, every_seconds=_SWEEP_SECONDS)]
        if self.node is not None:
            from flux.engine.lifecycle.meter import EVERY_SECONDS
            from flux.engine.lifecycle.metering import Sampler

            manager = self.node.manager
            found += [
                Task(name="sample", act=Sampler(self.engine.context).sample, every_seconds=EVERY_SECONDS),
                Task(name="evict", act=manager.evict_idle, every_seconds=_SWEEP_SECONDS),
                Task(name="mend", act=manager.mend, every_seconds=_MEND_SECONDS),
                Task(name="reconcile", act=manager.reconcile, every_seconds=_RECONCILE_SECONDS),
                Task(name="collect", act=manager.collect, every_seconds=_RECONCILE_SECONDS),
            ]
            if self.node.uploads:
                found.append(
                    Task(name="upload", act=manager.upload_once, every_seconds=_UPLOAD_SECONDS, again_while_busy=True)
                )
        if self.control is not None:
            found.append(Task(name="control", act=self.control.plane.sweep, every_seconds=inventory_seconds))
        return found

    def close(self) -> None:
        """End everything: the control plane first, which asks the node; the node's executions last. Idempotent."""
        with ExitStack() as held:
            held.callback(self._release)
            held.callback(self.engine.close)
            if self.control is not None:
                held.callback(self.control.plane.close)
                held.callback(self.control.contacts.close)
