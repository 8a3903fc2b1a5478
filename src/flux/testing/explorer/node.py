"""A node in the world: the real manager's operations on the real schema, over a machine that outlives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flux.core.node import Activate, Capture, Destroy, Evict, Inventory, Stop, Suspend, TearDown
from flux.engine.node import (
    activate,
    capture,
    collect,
    destroy,
    evict,
    inventory,
    reconcile,
    recover,
    stop,
    suspend,
    teardown,
    uploads,
)
from flux.engine.node.node import Node, NodeSettings
from flux.failpoints import Steps
from flux.store.database import MIGRATIONS
from flux.testing.clock import FakeClock
from flux.testing.explorer.desk import ModelDesk
from flux.testing.explorer.machine import FRAGILE, Machine, ModelArtifacts, ModelExecutions, Store
from flux.testing.explorer.party import dump
from flux.testing.explorer.tape import ModelDatabase, Tape, Taped, TapedClock, in_memory
from flux.testing.explorer.task import Operation

#: Which process may write is no matter of what is stored.
_IGNORED = frozenset({"node_identity"})
STEADY = "steady"

_SERVED: Mapping[type[Any], tuple[str, Callable[[Node, Any], Steps[Any]]]] = {
    Activate: ("activate", lambda node, request: activate.steps(node, request)),
    Suspend: ("suspend", lambda node, request: suspend.steps(node, request)),
    TearDown: ("tear_down", lambda node, request: teardown.steps(node, request)),
    Destroy: ("destroy", lambda node, request: destroy.steps(node, request)),
    Capture: ("capture", lambda node, request: capture.steps(node, request)),
    Stop: ("stop", lambda node, request: stop.steps(node, request)),
    Evict: ("evict", lambda node, request: evict.steps(node, request)),
    Inventory: ("inventory", lambda node, request: inventory.steps(node, request)),
}


class NodeParty:
    """Implements ``party.Party``. A new process has a new ``node``; store and machine stay."""

    def __init__(self, name: str, clock: FakeClock, tape: Tape, store: Store, settings: NodeSettings) -> None:
        self.name = name
        self.machine = Machine(name, store)
        self.connection = in_memory(MIGRATIONS)
        # the same schedule is to give the same world, so nothing about it is left to chance
        self.connection.execute("INSERT INTO node_identity VALUES (1, ?, x'00', '')", (f"store-{name}",))
        self._tape = tape
        self._clock = clock
        self._settings = settings
        self.node = self._opened()

    def _opened(self) -> Node:
        tape = self._tape
        node = Node(
            ModelDatabase(self.connection, self._clock, tape),
            Taped(ModelExecutions(self.machine), tape),
            Taped(ModelArtifacts(self.machine), tape),
            TapedClock(self._clock, tape),
            self._settings,
        )
        self.desk = ModelDesk(tape)
        node.desk = self.desk
        return node

    @property
    def store_id(self) -> str:
        """The node's store id, which requests carry."""
        return self.node.store_id

    def changes(self) -> int:
        return self.connection.total_changes + self.desk.changes + self.machine.changing

    def serve(self, request: Any) -> tuple[str, Callable[[], Operation]]:
        node = self.node
        if type(request) not in _SERVED:
            return "describe", lambda: _described(node)
        name, steps = _SERVED[type(request)]
        return name, lambda: steps(node, request)

    def recover(self) -> list[tuple[str, Callable[[], Operation]]]:
        node = self.node
        return [("recover", lambda: recover.steps(node)), ("reconcile", lambda: reconcile.steps(node))]

    # The node's own work, for scenarios

    def upload(self) -> Operation:
        """Upload whatever is due."""
        return uploads.work_once(self.node, None)

    def evict_idle(self) -> Operation:
        """Evict what is idle."""
        return evict.sweep(self.node)

    def collect(self) -> Operation:
        """Remove artifacts that nothing refers to."""
        return collect.steps(self.node)

    def reconcile(self) -> Operation:
        """Remove what has no row."""
        return reconcile.steps(self.node)

    def mend(self) -> Operation:
        """Bring rows to rest that a failure left in flight."""
        return recover.steps(self.node)

    def crash(self, *, host: bool) -> None:
        if host:
            self.machine.reboot()
        self.node = self._opened()

    def contents(self) -> str:
        return f"{dump(self.connection, _IGNORED)}\n{self.machine.state}\n{self.machine.store.saved}"

    def memory(self) -> str:
        return self.desk.text()

    def mark(self) -> Any:
        return self.node, self.desk, self.desk.state, self.machine.state, self.machine.store.saved

    def back_to(self, mark: Any) -> None:
        self.node, self.desk, self.desk.state, self.machine.state, self.machine.store.saved = mark


def _described(node: Node) -> Operation:
    yield from ()
    return inventory.described(node)


def settings(*, uploads: bool = True, evict_idle_seconds: float = 0.0) -> NodeSettings:
    """Return settings with which everything idle may be evicted, and every resource is old."""
    return NodeSettings(
        uploads=uploads,
        evict_idle_seconds=evict_idle_seconds,
        orphan_age_seconds=1.0,
        kinds=(STEADY, FRAGILE),
        address="node:1",
    )
