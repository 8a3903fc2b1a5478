"""Threads and processes: one wake for all who ask, on several control planes over one PostgreSQL (§9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flux.app.clock import SystemClock
from flux.control.context import Control, ControlSettings
from flux.control.direct import DirectPlacement
from flux.control.drive import Changes, Driver
from flux.control.plane import ControlPlane
from flux.core.control import SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, Activated
from flux.core.requests import CreateSandbox
from flux.engine import ids
from flux.ports.node import Node
from flux.store.registry.database import RegistryDatabase, open_registry
from tests.control.kit import ADMIN, Place, World


class Gate:
    """A node whose activations wait at a gate, counted."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Semaphore(0)
        self.activated: list[Activate] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def activate(self, request: Activate) -> Activated:
        self.activated.append(request)
        self.arrived.release()
        assert self.open.wait(30)
        return self._node.activate(request)


class Gated:
    """Implements ``control.drive.Nodes``."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def node(self, name: str, address: str | None = None) -> Node:
        return self.gate  # type: ignore[return-value]


def plane(world: World, registry: RegistryDatabase, gate: Gate, **settings: Any) -> ControlPlane:
    changes = Changes()
    control = Control(
        registry=registry,
        clock=SystemClock(),
        placement=DirectPlacement(ids.identity),
        build=world._built,
        identity=ids.identity,
        audit=lambda line: None,
        settings=ControlSettings(nap_seconds=0.01, **settings),
        local="n1",
        changed=changes.changed,
    )
    return ControlPlane(control, Driver(Gated(gate), changes, threads=True))


Planes = Callable[..., ControlPlane]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def gate(world: World) -> Gate:
    place: Place = world.places["n1"]
    return Gate(place.manager)


@pytest.fixture
def planes(world: World, gate: Gate, postgres_url: str) -> Iterator[Planes]:
    """Makes control planes, each with its own connections to one PostgreSQL."""
    made: list[RegistryDatabase] = []

    def make(**settings: Any) -> ControlPlane:
        registry = open_registry(postgres_url, SystemClock())
        made.append(registry)
        return plane(world, registry, gate, **settings)

    first = make()
    first.recover()
    yield make
    gate.open.set()
    for registry in made:
        registry.close()


def paused(plane: ControlPlane) -> str:
    sandbox = plane.create_sandbox(ADMIN, CreateSandbox()).sandbox.id
    plane.pause(ADMIN, sandbox)
    return sandbox


def test_all_who_connect_at_once_get_one_wake(world: World, gate: Gate, planes: Planes) -> None:
    one, two = planes(), planes()
    sandbox = paused(one)
    gate.activated.clear()
    gate.open.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(each.resume, ADMIN, sandbox) for each in (one, two) for _ in range(4)]
        gate.arrived.acquire()
        gate.open.set()
        answers = [each.result(30) for each in asked]
    assert {(status.state, status.generation) for status in answers} == {(ControlState.RUNNING, 2)}
    assert len({request.route.attempt_id for request in gate.activated}) == 1
    assert world.machine.generations_running(sandbox) == [2]


def test_a_wake_whose_process_died_is_taken_over_by_another(world: World, gate: Gate, planes: Planes) -> None:
    dying, heir = planes(), planes(takeover_seconds=0.2)
    sandbox = paused(heir)
    gate.activated.clear()
    gate.open.clear()
    thread = threading.Thread(target=lambda: dying.resume(ADMIN, sandbox), daemon=True)
    thread.start()
    for _ in range(2):  # the creation's, and the wake's
        gate.arrived.acquire()
    gate.open.set()
    status = heir.resume(ADMIN, sandbox)
    assert (status.state, status.generation) == (ControlState.RUNNING, 2)
    assert len({request.route.attempt_id for request in gate.activated}) == 1
    thread.join(30)


def test_a_failure_is_everybodys(world: World, gate: Gate, planes: Planes) -> None:
    one, two = planes(), planes()
    sandbox = paused(one)
    world.machine.fail("prepare", times=2)
    gate.open.clear()
    for _ in range(1):
        gate.arrived.acquire()  # the creation's

    def ask(each: ControlPlane) -> SandboxStatus | FluxError:
        try:
            return each.resume(ADMIN, sandbox)
        except FluxError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, one)
        gate.arrived.acquire()
        others = [pool.submit(ask, each) for each in (one, two, two)]
        gate.open.set()
        answers = [first.result(30), *(each.result(30) for each in others)]
    failures = [answer for answer in answers if isinstance(answer, FluxError)]
    assert failures
    assert {failure.details["reason"] for failure in failures} == {"PrepareFailed"}
    assert one.resume(ADMIN, sandbox).state is ControlState.RUNNING


def test_a_kill_from_another_process_wins_over_a_wake(world: World, gate: Gate, planes: Planes) -> None:
    one, two = planes(), planes()
    sandbox = paused(one)
    gate.arrived.acquire()
    gate.open.clear()
    with ThreadPoolExecutor(1) as pool:
        waking = pool.submit(one.resume, ADMIN, sandbox)
        gate.arrived.acquire()
        two.delete_sandbox(ADMIN, sandbox)
        gate.open.set()
        with pytest.raises(FluxError) as lost:
            waking.result(30)
    assert lost.value.code is Code.NOT_FOUND
    assert not world.machine.running
    with pytest.raises(FluxError):
        one.get_sandbox(ADMIN, sandbox)


def test_two_processes_create_with_one_key(world: World, gate: Gate, planes: Planes) -> None:
    one, two = planes(), planes()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(each.create_sandbox, ADMIN, CreateSandbox(), "k") for each in (one, two) for _ in range(4)]
        made = {each.result(30).sandbox.id for each in asked}
    assert len(made) == 1
    assert len(one.list_sandboxes(ADMIN).items) == 1


@pytest.mark.slow
def test_pause_and_connect_two_hundred_times_keep_one_execution(world: World, gate: Gate, planes: Planes) -> None:
    plane = planes()
    sandbox = plane.create_sandbox(ADMIN, CreateSandbox()).sandbox.id
    for number in range(200):
        world.machine.write(sandbox, f"f{number}", "x")
        plane.pause(ADMIN, sandbox)
        assert plane.resume(ADMIN, sandbox).generation == number + 2
        assert len(world.machine.generations_running(sandbox)) == 1
    assert len(world.machine.files(sandbox)) == 200


def test_a_node_that_hangs_holds_nobody_up(world: World, gate: Gate, planes: Planes) -> None:
    plane = planes(wake_timeout_seconds=0.3)
    sandbox = paused(plane)
    gate.open.clear()
    with pytest.raises(FluxError) as late:
        plane.resume(ADMIN, sandbox)
    assert (late.value.code, late.value.details["reason"]) == (Code.UNAVAILABLE, "WakeTimedOut")
    gate.open.set()
    assert plane.resume(ADMIN, sandbox).generation == 2
