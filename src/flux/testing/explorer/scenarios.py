"""What is explored: a few operations each, which faults may befall them, how many nodes there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import msgspec

from flux.control.calls import Send
from flux.control.context import ControlSettings
from flux.core.node import TearDown
from flux.core.route import Execution
from flux.engine.node.node import NodeSettings
from flux.testing.clock import FakeClock
from flux.testing.explorer import invariants, node
from flux.testing.explorer.control import ControlParty
from flux.testing.explorer.facts import registry_view
from flux.testing.explorer.invariants import Invariant
from flux.testing.explorer.machine import FRAGILE, Store
from flux.testing.explorer.node import STEADY, NodeParty
from flux.testing.explorer.observer import Observer, calm
from flux.testing.explorer.tape import Tape
from flux.testing.explorer.task import Operation
from flux.testing.explorer.world import Begin, Rules, World

#: The sandbox of every scenario, by its name.
BOX = "box"
NODES = ("a", "b")
#: Long naps and short times, so that what waits in vain gives up after a few looks.
SETTINGS = ControlSettings(
    nap_seconds=15.0,
    wake_timeout_seconds=45.0,
    pause_timeout_seconds=45.0,
    kill_timeout_seconds=30.0,
    takeover_seconds=10.0,
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario.

    ``before`` is done first, one after the other, without faults or other choices; then ``begins`` begin in their
    order, each as early as it likes unless it is ``settled``.
    """

    name: str
    begins: tuple[Begin, ...]
    rules: Rules = Rules()
    before: tuple[Begin, ...] = ()
    nodes: int = 1
    kind: str = STEADY
    uploads: bool = False

    def make(
        self, asked: Sequence[Invariant] = invariants.ALL, checks: Counter[str] | None = None, *, wakes: bool = True
    ) -> World:
        """Return the world in which it begins."""
        return _world(self, Observer(asked, checks, wakes=wakes))


def _world(scenario: Scenario, observer: Observer) -> World:
    clock, tape, store = FakeClock(), Tape(), Store()
    settings: NodeSettings = node.settings(uploads=scenario.uploads)
    parties: list[Any] = [NodeParty(name, clock, tape, store, settings) for name in NODES[: scenario.nodes]]
    parties.append(ControlParty(clock, tape, SETTINGS, scenario.kind))
    world = World(parties, clock, tape, scenario.begins, scenario.rules, observer)
    for name in NODES[: scenario.nodes]:
        world.run_now("control", f"add {name}", partial(control(world).add_node, name))
        calm(world)
    for begin in scenario.before:
        world.run_now(begin.party, begin.name, partial(begin.make, world))
        calm(world)
    return world


def control(world: World) -> ControlParty:
    """Return the control plane."""
    party = world.parties["control"]
    assert isinstance(party, ControlParty)
    return party


def node_of(world: World, name: str) -> NodeParty:
    """Return a node."""
    party = world.parties[name]
    assert isinstance(party, NodeParty)
    return party


def user(name: str, make: Callable[[ControlParty], Operation], *, settled: bool = False) -> Begin:
    """Return an operation of the control plane."""
    return Begin(name=name, party="control", make=lambda world: make(control(world)), settled=settled)


def own(name: str, party: str, make: Callable[[NodeParty], Operation], *, settled: bool = False) -> Begin:
    """Return an operation that a node does of itself."""
    return Begin(name=name, party=party, make=lambda world: make(node_of(world, party)), settled=settled)


def _pod_deleted(world: World) -> Generator[Any, Any, None]:
    """Tell the node that the pod of the current generation is gone, as a platform does at any time."""
    party = control(world)
    (known,) = registry_view(party.connection).values()
    store = node_of(world, str(known.node)).store_id
    execution = Execution(generation=known.generation, pod_uid=str(known.pod_uid))
    yield Send(str(known.node), TearDown(sandbox_id=known.sandbox_id, node_store_id=store, execution=execution))


POD_DELETED = Begin(name="pod deleted", party="control", make=_pod_deleted)
CREATE = user("create", lambda party: party.create(BOX), settled=True)
PAUSE = user("pause", lambda party: party.pause(BOX), settled=True)
CONNECT = user("connect", lambda party: party.connect(BOX), settled=True)
CONNECT_TOO = user("connect too", lambda party: party.connect(BOX))
KILL = user("kill", lambda party: party.kill(BOX))
SNAPSHOT = user("snapshot", lambda party: party.snapshot(BOX))
SWEEP = user("sweep", lambda party: party.sweep(), settled=True)
EVICT = own("evict", "a", lambda party: party.evict_idle())
UPLOAD = own("upload", "a", lambda party: party.upload(), settled=True)
RECONCILE = own("reconcile", "a", lambda party: party.reconcile())
COLLECT = own("collect", "a", lambda party: party.collect())

_SAVED = (CREATE, PAUSE)
_UPLOADED = (CREATE, PAUSE, UPLOAD, SWEEP)
_ALL = Rules(
    crashes=("a", "control"), lose=True, repeat=True, failing=("activate", "suspend", "tear_down", "destroy", "capture")
)

#: The sandbox ``box`` was created (generation 1) and paused before each, but for the first.
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="create", begins=(CREATE, PAUSE, CONNECT), rules=_ALL),
    Scenario(name="wake", before=_SAVED, begins=(CONNECT, CONNECT_TOO), rules=_ALL),
    Scenario(name="wake-pause-wake", before=_SAVED, begins=(CONNECT, PAUSE, CONNECT), rules=_ALL),
    Scenario(name="pause", before=(*_SAVED, CONNECT), begins=(PAUSE, CONNECT_TOO), rules=_ALL),
    Scenario(name="evict", before=_UPLOADED, begins=(CONNECT, EVICT), rules=_ALL, uploads=True),
    Scenario(name="upload-evict", before=_SAVED, begins=(UPLOAD, EVICT, COLLECT, CONNECT), rules=_ALL, uploads=True),
    Scenario(name="kill", before=_SAVED, begins=(CONNECT, KILL), rules=_ALL),
    Scenario(name="pause-snapshot-kill", before=(*_SAVED, CONNECT), begins=(PAUSE, SNAPSHOT, KILL), rules=_ALL),
    Scenario(name="pod-deleted", before=_SAVED, begins=(CONNECT, POD_DELETED, CONNECT_TOO), rules=_ALL),
    Scenario(
        name="inventory", before=_SAVED, begins=(CONNECT, user("sweep too", lambda party: party.sweep())), rules=_ALL
    ),
    Scenario(name="reconcile", before=_SAVED, begins=(CONNECT, RECONCILE, COLLECT), rules=_ALL, uploads=True),
    Scenario(
        name="reboot",
        before=(*_SAVED, CONNECT),
        begins=(SWEEP, CONNECT),
        rules=msgspec.structs.replace(_ALL, reboots=("a",)),
        kind=FRAGILE,
    ),
    Scenario(
        name="two-nodes",
        before=_UPLOADED,
        begins=(CONNECT, PAUSE, CONNECT),
        rules=msgspec.structs.replace(_ALL, crashes=("a", "b", "control")),
        nodes=2,
        uploads=True,
    ),
    Scenario(
        name="two-nodes-kill",
        before=_UPLOADED,
        begins=(CONNECT, KILL),
        rules=msgspec.structs.replace(_ALL, crashes=("a", "b", "control")),
        nodes=2,
        uploads=True,
    ),
)


def named(name: str) -> Scenario:
    """Return a scenario by its name. Raises ``KeyError``."""
    return {scenario.name: scenario for scenario in SCENARIOS}[name]
