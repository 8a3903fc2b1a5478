"""The control plane in the world: its real operations on the real registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flux.control import create, kill, nodes, pause, snapshot, sweep, wake
from flux.control.context import Abandoned, Control, ControlSettings, Flights
from flux.control.direct import DirectPlacement
from flux.core.access import Actor, Role
from flux.core.lifecycle import NodeState
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.store.registry.database import MIGRATIONS, SqliteRegistry
from flux.store.registry.sandboxes import SandboxRow
from flux.testing.clock import FakeClock
from flux.testing.explorer.party import dump
from flux.testing.explorer.tape import Counter, ModelDatabase, Tape, TapedClock, in_memory
from flux.testing.explorer.task import Operation

ACTOR = Actor(name="explorer", role=Role.ADMIN)


class ModelFlights(Flights):
    """``Flights`` with its state as one value, used through the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.state: frozenset[str] = frozenset()

    def take(self, sandbox_id: str) -> bool:
        """Become the one who drives a sandbox."""
        return self._tape.call(lambda: self._taken(sandbox_id))

    def _taken(self, sandbox_id: str) -> bool:
        if sandbox_id in self.state:
            return False
        self.state |= {sandbox_id}
        return True

    def release(self, sandbox_id: str) -> None:
        """Let others drive it."""
        self._tape.call(lambda: self._released(sandbox_id))

    def _released(self, sandbox_id: str) -> None:
        self.state -= {sandbox_id}


class ModelAbandoned(Abandoned):
    """``Abandoned``, asked through the tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def is_one(self, context: Control, row: SandboxRow) -> bool:
        """Tell whether a moving row is to be driven on here."""
        held = super().is_one
        return self._tape.call(lambda: held(context, row))

    def state(self) -> dict[str, tuple[int, int]]:
        """Return what it has seen."""
        return dict(self._seen)

    def become(self, state: dict[str, tuple[int, int]]) -> None:
        """Have seen just that."""
        self._seen = dict(state)


class ModelRegistry(SqliteRegistry):
    """The registry over a database in memory."""

    def __init__(self, database: ModelDatabase) -> None:
        self._database = database


class ControlParty:
    """Implements ``party.Party``."""

    name = "control"

    def __init__(self, clock: FakeClock, tape: Tape, settings: ControlSettings, kind: str) -> None:
        self.connection = in_memory(MIGRATIONS)
        self.identity = Counter("c", tape)
        self._tape = tape
        self._clock = clock
        self._settings = settings
        self._kind = kind
        self.control = self._opened()

    def _opened(self) -> Control:
        tape = self._tape
        self.flights = ModelFlights(tape)
        control = Control(
            registry=ModelRegistry(ModelDatabase(self.connection, self._clock, tape)),
            clock=TapedClock(self._clock, tape),
            placement=DirectPlacement(self.identity),
            build=self._built,
            identity=self.identity,
            audit=lambda event: None,
            settings=self._settings,
            flights=self.flights,
            token=lambda: "0" * 48,
        )
        self.abandoned = ModelAbandoned(tape)
        control.abandoned = self.abandoned
        return control

    def _built(self, actor: Actor, request: CreateSandbox) -> Sandbox:
        return Sandbox(
            id=self.identity(),
            kind=self._kind,
            layout="managed",
            state=NodeState.CREATED,
            created_at=0.0,
            root_device=0,
            root_inode=0,
            name=request.name,
            template="",
        )

    def changes(self) -> int:
        return self.connection.total_changes

    def serve(self, request: Any) -> tuple[str, Callable[[], Operation]]:
        raise AssertionError(f"nobody sends the control plane {request}")

    def recover(self) -> list[tuple[str, Callable[[], Operation]]]:
        control = self.control
        return [("recover", lambda: sweep.recover(control, ()))]

    # What users and operators do

    def create(self, name: str) -> Operation:
        """Create a sandbox."""
        return create.create(self.control, ACTOR, CreateSandbox(name=name), None)

    def connect(self, name: str) -> Operation:
        """Wake a sandbox, or find it running."""
        return wake.connect(self.control, ACTOR, name, None)

    def pause(self, name: str) -> Operation:
        """Pause a sandbox."""
        return pause.pause(self.control, ACTOR, name, durable=False)

    def kill(self, name: str) -> Operation:
        """Delete a sandbox."""
        return kill.delete(self.control, ACTOR, name)

    def snapshot(self, name: str) -> Operation:
        """Take a snapshot."""
        return snapshot.snapshot(self.control, ACTOR, name, None)

    def sweep(self) -> Operation:
        """Take inventories, and finish what was begun."""
        return sweep.sweep(self.control)

    def add_node(self, name: str) -> Operation:
        """Register a node."""
        return nodes.add(self.control, name, f"{name}:1")

    def crash(self, *, host: bool) -> None:
        self.control = self._opened()

    def contents(self) -> str:
        return dump(self.connection)

    def memory(self) -> str:
        return repr((sorted(self.flights.state), sorted(self.abandoned.state().items())))

    def mark(self) -> Any:
        return (
            self.control,
            self.flights,
            self.flights.state,
            self.abandoned,
            self.abandoned.state(),
            self.identity.count,
        )

    def back_to(self, mark: Any) -> None:
        self.control, self.flights, self.flights.state, self.abandoned, abandoned, self.identity.count = mark
        self.abandoned.become(abandoned)
