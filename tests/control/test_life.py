"""A sandbox's life through the control plane and a real node manager: create, pause, connect, delete."""

from __future__ import annotations

import pytest

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, Suspend
from tests.control.conftest import Worlds
from tests.control.kit import World


def test_a_sandbox_lives(world: World) -> None:
    made = world.create(name="a")
    assert (made.state, made.generation, made.woke_from, made.node) == (ControlState.RUNNING, 1, "cold", "n1")
    world.machine.write(made.sandbox.id, "f", "1")
    paused = world.pause("a")
    assert (paused.state, paused.generation) == (ControlState.PAUSED, 1)
    assert paused.artifact is not None
    woken = world.connect("a")
    assert (woken.state, woken.generation, woken.woke_from) == (ControlState.RUNNING, 2, "artifact")
    assert woken.artifact == paused.artifact
    assert world.machine.files(made.sandbox.id) == {"f": "1"}
    assert world.connect("a").woke_from == "running"
    world.kill("a")
    assert not world.exists("a")
    assert not world.exists(made.sandbox.id)
    assert not world.machine.running
    with pytest.raises(FluxError) as refused:
        world.connect("a")
    assert refused.value.code is Code.NOT_FOUND


def test_twenty_cycles_keep_twenty_files(world: World) -> None:
    sandbox = world.create().sandbox.id
    for number in range(20):
        world.machine.write(sandbox, f"f{number}", str(number))
        world.pause(sandbox)
        assert world.connect(sandbox).generation == number + 2
    assert world.machine.files(sandbox) == {f"f{number}": str(number) for number in range(20)}
    assert len(world.requests(Activate)) == 21
    assert len(world.requests(Suspend)) == 20


def test_several_nodes_share_the_work(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    made = [world.create() for _ in range(2)]
    world.sweep()
    made += [world.create() for _ in range(1)]
    assert {status.node for status in made} <= {"n1", "n2"}
