"""The node manager: everything that can be asked of one node, as one object (spec: generations, §3–§8).

Each method drives the generator of a module beside it; tests drive the generators themselves, many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from flux.core.errors import FluxError
from flux.core.node import (
    Activate,
    Activated,
    Capture,
    Captured,
    Described,
    Destroy,
    Destroyed,
    Evict,
    Inventoried,
    Inventory,
    Listed,
    Stop,
    Stopped,
    Suspend,
    Suspended,
    TearDown,
    TornDown,
)
from flux.core.sandbox import Sandbox
from flux.engine.node import (
    activate,
    answers,
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
from flux.engine.node.node import Disk, Node, NodeSettings
from flux.engine.node.recover import Recovered
from flux.failpoints import Point, Steps, run
from flux.ports.artifacts import Artifacts
from flux.ports.clock import Clock
from flux.ports.executions import Executions
from flux.ports.observer import Observer
from flux.store.database import Database

T = TypeVar("T")

#: Where an operation waits for another one; asked again as soon as anything has changed.
WAITING = frozenset({Point.ACTIVATE_JOINED, Point.TEARDOWN_WAITED})
_WAIT_SECONDS = 1.0


class NodeManager:
    """Implements ``ports.node.Node`` in this process. Thread-safe; raises ``FluxError`` only.

    Opening one makes it the only one that may write to the store. ``recover`` comes before everything else.

    Args:
        database: the node's store.
        executions: what runs here.
        artifacts: what is saved here.
        clock: the time.
        settings: how to work.
        disk: tells how full the disk is.
        destroyed: puts an end to what others keep for a sandbox that is being destroyed; repeated after a failure.
        observer: hears what ``Node`` counts.
    """

    def __init__(
        self,
        database: Database,
        executions: Executions,
        artifacts: Artifacts,
        clock: Clock,
        settings: NodeSettings,
        *,
        disk: Callable[[], Disk] = lambda: Disk(total=0, free=0),
        destroyed: Callable[[Sandbox], None] = lambda _: None,
        observer: Observer | None = None,
    ) -> None:
        self.node = Node(
            database, executions, artifacts, clock, settings, disk=disk, destroyed=destroyed, observer=observer
        )

    @property
    def store_id(self) -> str:
        """The id of this node's store, which every request carries."""
        return self.node.store_id

    def activate(self, request: Activate) -> Activated:
        """Create or Start a generation (§5)."""
        return self._run(activate.steps(self.node, request), request.sandbox_id)

    def suspend(self, request: Suspend) -> Suspended:
        """Save an execution to an artifact and end it (§6)."""
        return self._run(suspend.steps(self.node, request), request.sandbox_id)

    def stop(self, request: Stop) -> Stopped:
        """End an execution without saving it."""
        return self._run(stop.steps(self.node, request), request.sandbox_id)

    def tear_down(self, request: TearDown) -> TornDown:
        """End a generation; it never starts on this node afterwards (§7)."""
        return self._run(teardown.steps(self.node, request), request.sandbox_id)

    def evict(self, request: Evict) -> None:
        """Delete an idle, backed-up sandbox from this node's disk (§8)."""
        self._run(evict.steps(self.node, request), request.sandbox_id)

    def destroy(self, request: Destroy) -> Destroyed:
        """End everything of a sandbox, for ever (§8)."""
        return self._run(destroy.steps(self.node, request), request.sandbox_id)

    def capture(self, request: Capture) -> Captured:
        """Save a running execution and let it run on (§6)."""
        return self._run(capture.steps(self.node, request), request.sandbox_id)

    def inventory(self, request: Inventory) -> Inventoried:
        """Take the control plane's facts into account and report (§8)."""
        return self._run(inventory.steps(self.node, request))

    def list(self) -> Listed:
        """Report every row and artifact."""
        return inventory.listed(self.node)

    def describe(self) -> Described:
        """Tell which node this is."""
        return inventory.described(self.node)

    # The node's own work: a daemon calls these now and then

    def recover(self) -> Recovered:
        """Bring every row in flight to rest, and every dead execution's row. Called once, before anything else."""
        return self._run(recover.steps(self.node))

    def mend(self) -> Recovered:
        """Do what ``recover`` does for rows whose operation failed and could not undo itself."""
        return self._run(recover.steps(self.node))

    def reconcile(self) -> Sequence[str]:
        """Remove what has no row (§8); return ``<sandbox id>/<generation>`` of each."""
        return self._run(reconcile.steps(self.node))

    def upload_once(self, artifact_id: str | None = None) -> bool:
        """Work on one upload job that is due, or on the one of an artifact; ``False`` if there is none."""
        return self._run(uploads.work_once(self.node, artifact_id))

    def collect(self) -> int:
        """Remove local artifacts that nothing refers to; return bytes freed."""
        return self._run(collect.steps(self.node))

    def evict_idle(self) -> Sequence[str]:
        """Evict what is idle for long, and on a full disk what was used least recently; return the sandboxes' ids."""
        return self._run(evict.sweep(self.node))

    def _run(self, steps: Steps[T], sandbox_id: str = "") -> T:
        try:
            return run(_paced(self.node, steps), sandbox_id)
        except FluxError:
            raise
        except Exception as error:
            raise answers.unknown(error, sandbox_id, "finish work on") from error


def _paced(node: Node, steps: Steps[T]) -> Steps[T]:
    """Pass an operation's points on; at a waiting one, wait until something has changed since it last looked."""
    seen = node.desk.changes
    try:
        point = next(steps)
        while True:
            try:
                yield point
                if point in WAITING:
                    node.desk.wait(seen, _WAIT_SECONDS)
                seen = node.desk.changes
            except Exception as error:
                point = steps.throw(error)
            else:
                point = next(steps)
    except StopIteration as stop_iteration:
        result: T = stop_iteration.value
        return result
