"""A control plane and a node on real databases, whose machine is in memory: what is left is the bookkeeping."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flux.app.clock import SystemClock
from flux.control.context import Control
from flux.control.direct import DirectPlacement
from flux.control.drive import Changes, Driver
from flux.control.plane import ControlPlane
from flux.core.access import Actor, Role
from flux.core.lifecycle import NodeState
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.engine import ids
from flux.engine.node.manager import NodeManager
from flux.engine.node.node import NodeSettings
from flux.failpoints import Point, armed
from flux.ports.node import Node
from flux.store.database import Database
from flux.store.registry.database import SqliteRegistry
from flux.testing.clock import FakeClock
from flux.testing.executions import KIND, FakeArtifacts, FakeExecutions, FakeMachine

ADMIN = Actor(name="bench", role=Role.ADMIN)


class Fleet:
    """One node and its control plane in one process, as a daemon has them."""

    def __init__(self, place: Path) -> None:
        clock = SystemClock()
        self.machine = FakeMachine(FakeClock())
        self.registry = SqliteRegistry(str(place / "control.db"), clock)
        self.database = Database(str(place / "flux.db"), clock)
        settings = NodeSettings(kinds=(KIND,), uploads=False)
        self.manager = NodeManager(
            self.database, FakeExecutions(self.machine), FakeArtifacts(self.machine), clock, settings
        )
        self._numbers = itertools.count()
        changes = Changes()
        control = Control(
            registry=self.registry,
            clock=clock,
            placement=DirectPlacement(ids.identity),
            build=self._built,
            identity=ids.identity,
            audit=lambda line: None,
            local="local",
            changed=changes.changed,
        )
        self.plane = ControlPlane(control, Driver(self, changes, threads=True))
        self.plane.recover()

    def node(self, name: str, address: str | None = None) -> Node:
        """Return the only node."""
        return self.manager

    def _built(self, actor: Actor, request: CreateSandbox) -> Sandbox:
        return Sandbox(
            id=f"sb{next(self._numbers):016x}",
            kind=KIND,
            layout="managed",
            state=NodeState.CREATED,
            created_at=0.0,
            root_device=0,
            root_inode=0,
            template="",
        )

    def create(self) -> str:
        """Create a sandbox and return its id."""
        return self.plane.create_sandbox(ADMIN, CreateSandbox()).sandbox.id

    def pause(self, sandbox: str) -> None:
        """Pause a sandbox."""
        self.plane.pause(ADMIN, sandbox)

    def connect(self, sandbox: str) -> None:
        """Wake a sandbox."""
        self.plane.resume(ADMIN, sandbox)


@contextmanager
def fleet(place: Path) -> Iterator[Fleet]:
    """Open a fleet in a directory."""
    place.mkdir()
    opened = Fleet(place)
    try:
        yield opened
    finally:
        opened.database.close()
        opened.registry.close()


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the transactions of both databases; the one number in the list is how many were committed."""
    count = [0]

    def count_commit(point: Point) -> None:
        count[0] += point is Point.DATABASE_COMMIT

    with armed(count_commit):
        yield count
