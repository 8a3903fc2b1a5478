"""A control plane over node managers with machines in memory, driven without threads: a nap only moves the clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flux.control import create, kill, nodes, pause, reach, snapshot, sweep, wake
from flux.control.calls import Calls, Describe, Nap, Send
from flux.control.context import Control, ControlSettings
from flux.control.direct import DirectPlacement
from flux.control.drive import _METHODS
from flux.core.access import Actor, Role
from flux.core.audit import AuditEvent
from flux.core.control import Located, SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.node import Described
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.engine.node.manager import NodeManager
from flux.engine.node.node import NodeSettings
from flux.failpoints import Point
from flux.ports.node import Node
from flux.store.database import Database
from flux.store.registry import sandboxes
from flux.store.registry.database import RegistryDatabase, SqliteRegistry
from flux.store.registry.sandboxes import SandboxRow
from flux.testing.clock import FakeClock
from flux.testing.executions import KIND, FakeArtifacts, FakeExecutions, FakeMachine, FakeRemote

T = TypeVar("T")
ADMIN = Actor(name="root", role=Role.ADMIN)
ANN = Actor(name="ann", role=Role.USER, key_id="kyann")
BOB = Actor(name="bob", role=Role.USER, key_id="kybob")

#: Stands between the control plane and a node: gets the request and how to deliver it.
Carrier = Callable[[Any, Callable[[], Any]], Any]


class Place:
    """One node: its machine, its store, and the manager that works on them now."""

    def __init__(self, name: str, folder: Path, clock: FakeClock, remote: FakeRemote, kinds: tuple[str, ...]) -> None:
        self.name = name
        self.clock = clock
        self.machine = FakeMachine(clock, remote)
        self.settings = NodeSettings(address=f"{name}.data:1", kinds=kinds, upload_retry_seconds=0.0)
        self._database = Database(str(folder / f"{name}.db"), clock)
        self.manager = self._opened()

    def _opened(self) -> NodeManager:
        machine = self.machine
        return NodeManager(self._database, FakeExecutions(machine), FakeArtifacts(machine), self.clock, self.settings)

    def restart(self) -> None:
        """Let a new manager find what the old one left."""
        self.manager = self._opened()
        self.manager.recover()

    def close(self) -> None:
        self._database.close()


class World:
    """A registry, a clock, nodes, and a carrier for each node that may lose, refuse or repeat.

    ``at``: what is done when a point is reached. ``sent``: every request with the name of its node.
    """

    def __init__(self, folder: Path, registry: RegistryDatabase | None = None, *names: str) -> None:
        self.clock = FakeClock()
        self.remote = FakeRemote()
        self.folder = folder
        self.registry = registry or SqliteRegistry(str(folder / "control.db"), self.clock)
        self.places = {name: Place(name, folder, self.clock, self.remote, (KIND,)) for name in names or ("n1",)}
        self.carriers: dict[str, Carrier] = {}
        self.at: dict[Point, Callable[[], object]] = {}
        self.points: list[Point] = []
        self.sent: list[tuple[str, Any]] = []
        self.lines: list[AuditEvent] = []
        self._numbers = itertools.count(1)
        self.control = self.process()
        for name in self.places:
            self.run(nodes.add(self.control, name, f"{name}:1"))
        self.sent.clear()
        self.points.clear()

    def process(self, **settings: Any) -> Control:
        """Return another control process over the same registry."""
        return Control(
            registry=self.registry,
            clock=self.clock,
            placement=DirectPlacement(self.identity),
            build=self._built,
            identity=self.identity,
            audit=self.lines.append,
            settings=ControlSettings(**settings),
            local="n1",
        )

    def identity(self) -> str:
        """Return an identity that tells its number."""
        return f"{next(self._numbers):016x}" * 2

    def _built(self, actor: Actor, request: CreateSandbox) -> Sandbox:
        if request.kind == "unknown":
            raise FluxError(Code.INVALID, "cannot create the sandbox: there is no such kind")
        moment = self.control.moment()
        ttl = request.ttl_seconds
        return Sandbox(
            id=f"sb{self.identity()[:16]}",
            kind=KIND,
            layout="bound" if request.workspace else "managed",
            state=NodeState.CREATED,
            created_at=moment.wall,
            root_device=0,
            root_inode=0,
            name=request.name,
            workspace=request.workspace,
            template="",
            ttl_seconds=ttl,
            on_timeout=request.on_timeout,
            expires_at=None if ttl is None else moment.wall + ttl,
            boot_id=moment.boot_id,
            expires_boot_ns=moment.boot_ns + (ttl or 0) * 10**9,
            owner=actor.key_id,
            auto_resume=request.auto_resume,
            public_ports=request.public_ports,
            environment=request.environment,
            metadata=request.metadata,
        )

    # Driving

    def run(self, calls: Calls[T]) -> T:
        """Drive an operation to its end."""
        try:
            step = next(calls)
            while True:
                try:
                    reply = self._do(step)
                except FluxError as error:
                    step = calls.throw(error)
                else:
                    step = calls.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _do(self, step: Any) -> Any:
        if isinstance(step, Nap):
            self.clock.advance(max(step.seconds, 0.001))
            return None
        if isinstance(step, Point):
            self.points.append(step)
            action = self.at.pop(step, None)
            if action is not None:
                action()
            return None
        self.sent.append((step.node, step.request))
        return self.deliver(step)

    def deliver(self, send: Send) -> Any:
        """Bring a request to its node, by the node's carrier if it has one."""
        request = send.request

        def ask() -> Any:
            node: Node = self.places[send.node].manager
            if isinstance(request, Describe):
                return node.describe()
            return _METHODS[type(request)](node)(request)

        carrier = self.carriers.get(send.node)
        return ask() if carrier is None else carrier(request, ask)

    # What users do

    def create(self, actor: Actor = ADMIN, key: str | None = None, **fields: Any) -> SandboxStatus:
        return self.run(create.create(self.control, actor, CreateSandbox(**fields), key))

    def connect(self, sandbox: str, timeout: int | None = None, actor: Actor = ADMIN) -> SandboxStatus:
        return self.run(wake.connect(self.control, actor, sandbox, timeout))

    def pause(self, sandbox: str, *, durable: bool = False, actor: Actor = ADMIN) -> SandboxStatus:
        return self.run(pause.pause(self.control, actor, sandbox, durable=durable))

    def reach(self, sandbox: str, token: str | None = None, *, wake: bool = False) -> Located:
        return self.run(reach.reach(self.control, sandbox, token, wake_it=wake))

    def kill(self, sandbox: str, actor: Actor = ADMIN) -> SandboxStatus:
        return self.run(kill.delete(self.control, actor, sandbox))

    def sweep(self, control: Control | None = None) -> Any:
        return self.run(sweep.sweep(control or self.control))

    def fork(
        self, sandbox: str, count: int = 1, name: str | None = None, ttl_seconds: int | None = None
    ) -> list[SandboxStatus]:
        return self.run(snapshot.fork(self.control, ADMIN, sandbox, count, name, ttl_seconds))

    def snapshot(self, sandbox: str, name: str | None = None) -> Any:
        return self.run(snapshot.snapshot(self.control, ADMIN, sandbox, name))

    # Looking

    def row(self, sandbox: str) -> SandboxRow:
        """Return a sandbox's row in the registry."""
        with self.registry.reading() as tx:
            found = sandboxes.find(tx, sandbox)
        assert found is not None
        return found

    def exists(self, sandbox: str) -> bool:
        """Tell whether the registry has a row of the sandbox, tombstones included."""
        with self.registry.reading() as tx:
            return sandboxes.find(tx, sandbox) is not None

    @property
    def machine(self) -> FakeMachine:
        """The first node's machine."""
        return next(iter(self.places.values())).machine

    def requests(self, kind: type) -> list[Any]:
        """Return the requests of a kind that were sent, in order."""
        return [request for _, request in self.sent if isinstance(request, kind)]

    def uploaded(self, node: str = "n1") -> None:
        """Let a node finish its uploads, and the registry hear of it."""
        while self.places[node].manager.upload_once():
            pass
        self.sweep()

    def close(self) -> None:
        for place in self.places.values():
            place.close()
        self.registry.close()


def lost(*kinds: type, times: int = 1, before: bool = False) -> Carrier:
    """Return a carrier that loses the replies (``before``: the requests) of some kinds, the first ``times``."""
    left = [times]

    def carry(request: Any, ask: Callable[[], Any]) -> Any:
        if not isinstance(request, kinds) or left[0] <= 0:
            return ask()
        left[0] -= 1
        if not before:
            ask()
        raise FluxError(Code.UNKNOWN_OUTCOME, "cannot tell what the node did: the connection was lost")

    return carry


def down(request: Any, ask: Callable[[], Any]) -> Any:
    """Be a carrier to a node that does not answer."""
    raise FluxError(Code.UNAVAILABLE, "cannot reach the node: connection refused")


def signed(code: Code, reason: str, store: str, **details: Any) -> FluxError:
    """Return an error with a node's details."""
    return FluxError(code, f"cannot start: {reason}", {"reason": reason, "node_store_id": store, **details})


def described(store: str, kinds: tuple[str, ...] = (KIND,)) -> Described:
    """Return what a node says of itself."""
    return Described(node_store_id=store, kinds=kinds, address="", disk_total=1, disk_free=1, running=0, version="0")
