"""Pauses, snapshots and forks: what is asked again, what is believed, and what is refused (spec: generations, §6)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from flux.control import pause as pauses
from flux.control import suspend
from flux.control.context import Deadline
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, Capture, Suspend, TearDown
from flux.failpoints import Point
from flux.store.registry.sandboxes import SandboxRow
from tests.control.conftest import Worlds
from tests.control.kit import ADMIN, World, down, lost, signed


def awake(world: World) -> str:
    sandbox = world.create(name="a").sandbox.id
    world.machine.write(sandbox, "f", "kept")
    world.sent.clear()
    world.points.clear()
    return sandbox


@pytest.mark.parametrize("before", [True, False])
def test_a_lost_pause_is_asked_again_and_gives_the_same_artifact(world: World, before: bool) -> None:
    sandbox = awake(world)
    world.carriers["n1"] = lost(Suspend, times=2, before=before)
    paused = world.pause(sandbox)
    first, second, third = world.requests(Suspend)
    assert first == second == third
    assert len(world.machine.saved) == 1
    assert paused.artifact is not None
    assert list(world.machine.saved) == [paused.artifact.id]


def test_a_pause_that_failed_leaves_it_running(world: World) -> None:
    sandbox = awake(world)
    world.machine.fail("capture")
    with pytest.raises(FluxError) as failed:
        world.pause(sandbox)
    assert "it runs on" in failed.value.message
    row = world.row(sandbox)
    assert (row.state, row.artifact) == (ControlState.RUNNING, None)
    assert world.machine.files(sandbox) == {"f": "kept"}
    assert world.pause(sandbox).state is ControlState.PAUSED


def test_a_pause_of_a_paused_one_does_nothing(world: World) -> None:
    sandbox = awake(world)
    first = world.pause(sandbox)
    assert world.pause(sandbox) == first
    assert len(world.requests(Suspend)) == 1


def test_a_pause_of_what_has_ended_rests_on_the_last_artifact(world: World) -> None:
    sandbox = awake(world)
    original = world.pause(sandbox).artifact
    world.connect(sandbox)
    world.machine.survives = frozenset()
    world.machine.power_cycle()
    world.places["n1"].restart()
    paused = world.pause(sandbox)
    assert (paused.state, paused.stopped, paused.artifact) == (ControlState.PAUSED, True, original)
    assert world.connect(sandbox).woke_from == "last_artifact_after_stop"


def test_what_the_node_saved_by_itself_is_accepted(world: World) -> None:
    """Its pod was deleted: the node tore it down and saved it, and nobody told the control plane."""
    sandbox = awake(world)
    row = world.row(sandbox)
    teardown = TearDown(sandbox_id=sandbox, node_store_id=row.node_store_id or "", execution=row.execution)
    torn = world.places["n1"].manager.tear_down(teardown)
    assert torn.artifact is not None
    swept = world.sweep()
    assert swept.lost == ()
    assert world.row(sandbox).state is ControlState.PAUSED
    assert world.row(sandbox).artifact_id == torn.artifact.id
    assert world.connect(sandbox).woke_from == "artifact"
    assert world.machine.files(sandbox) == {"f": "kept"}


def test_a_node_that_is_down_gives_an_unknown_outcome_and_the_pause_is_gone_on_with(world: World) -> None:
    sandbox = awake(world)
    world.carriers["n1"] = down
    with pytest.raises(FluxError) as failed:
        world.pause(sandbox)
    assert failed.value.code is Code.UNKNOWN_OUTCOME
    assert world.row(sandbox).state is ControlState.PAUSING
    world.carriers.clear()
    assert world.sweep().finished == (sandbox,)
    assert world.row(sandbox).state is ControlState.PAUSED


def test_a_connect_waits_for_the_pause(world: World) -> None:
    sandbox = awake(world)
    statuses = []
    world.at[Point.PAUSE_RECORDED] = lambda: statuses.append(world.connect(sandbox))
    world.run(pauses.pause(world.control, ADMIN, sandbox))
    assert [status.generation for status in statuses] == [2]
    assert world.machine.files(sandbox) == {"f": "kept"}


def test_a_late_artifact_of_an_older_generation_is_refused(world: World) -> None:
    sandbox = awake(world)
    late: list[Any] = []

    def held_back(request: Any, ask: Callable[[], Any]) -> Any:
        """Deliver the first pause's answer only after two more generations ran."""
        answer = ask()
        if isinstance(request, Suspend) and not late:
            late.append(answer)
            raise FluxError(Code.UNKNOWN_OUTCOME, "cannot tell: the connection was lost")
        return answer

    world.carriers["n1"] = held_back
    old_row = None

    def remember() -> None:
        nonlocal old_row
        old_row = world.row(sandbox)

    world.at[Point.PAUSE_RECORDED] = remember
    world.pause(sandbox)
    world.connect(sandbox)
    world.machine.write(sandbox, "g", "newer")
    current = world.pause(sandbox).artifact
    from flux.control import transitions
    from flux.core.lifecycle import ControlEvent

    assert old_row is not None
    saved = transitions.Saved(generation=1, artifact=late[0].artifact)
    assert transitions.rest(world.control, old_row, ControlEvent.PAUSED, saved, stopped=False) is None
    assert world.row(sandbox).artifact == current


def test_whoever_is_late_with_a_pause_leaves_the_next_generation_alone(world: World) -> None:
    """A second process drove the same pause, was held up, and goes on when the sandbox was woken again."""
    sandbox = awake(world)
    seen: list[SandboxRow] = []
    world.at[Point.PAUSE_RECORDED] = lambda: seen.append(world.row(sandbox))
    world.pause(sandbox)
    world.connect(sandbox)
    late = world.process()
    world.run(suspend.suspend(late, seen[0], Deadline(world.clock, 60)))
    assert world.machine.generations_running(sandbox) == [2]
    row = world.row(sandbox)
    assert (row.state, row.generation) == (ControlState.RUNNING, 2)


def test_a_durable_pause_waits_for_the_upload(world: World) -> None:
    sandbox = awake(world)
    world.control.upload = world.places["n1"].manager.upload_once  # type: ignore[assignment]
    paused = world.pause(sandbox, durable=True)
    assert paused.artifact is not None
    assert paused.artifact.durable
    assert paused.artifact.id in world.remote.saved


def test_without_an_object_store_no_pause_is_durable_and_nothing_is_paused(world: World) -> None:
    sandbox = awake(world)
    world.control = world.process(uploads=False)
    with pytest.raises(FluxError) as refused:
        world.pause(sandbox, durable=True)
    assert refused.value.code is Code.NOT_APPLICABLE
    assert world.row(sandbox).state is ControlState.RUNNING
    assert world.pause(sandbox).state is ControlState.PAUSED


def test_a_durable_pause_that_cannot_be_uploaded_says_why_and_is_paused(world: World) -> None:
    sandbox = awake(world)
    world.remote.down = FluxError(Code.UNAVAILABLE, "cannot reach the object store: it is down")
    world.control.upload = world.places["n1"].manager.upload_once  # type: ignore[assignment]
    with pytest.raises(FluxError) as failed:
        world.pause(sandbox, durable=True)
    assert failed.value.code is Code.UNAVAILABLE
    assert "it is paused and safe on node n1" in failed.value.message
    assert world.row(sandbox).state is ControlState.PAUSED
    assert not world.row(sandbox).artifact_durable


def test_a_bound_sandbox_is_paused_and_nothing_else(world: World) -> None:
    sandbox = world.create(workspace="/srv/project").sandbox.id
    for refused in (
        lambda: world.snapshot(sandbox),
        lambda: world.fork(sandbox),
        lambda: world.pause(sandbox, durable=True),
    ):
        with pytest.raises(FluxError) as error:
            refused()
        assert error.value.code is Code.NOT_APPLICABLE
    world.pause(sandbox)
    assert world.connect(sandbox).node == "n1"


def test_a_snapshot_is_never_what_a_sandbox_wakes_from(world: World) -> None:
    sandbox = awake(world)
    taken = world.snapshot(sandbox, "s1")
    assert (taken.artifact.kind, taken.artifact.name, taken.artifact.current) == ("snapshot", "s1", False)
    assert taken.status.state is ControlState.RUNNING
    assert world.row(sandbox).artifact is None
    world.machine.write(sandbox, "g", "later")
    world.pause(sandbox)
    assert world.row(sandbox).artifact_id != taken.artifact.id
    world.connect(sandbox)
    assert world.machine.files(sandbox) == {"f": "kept", "g": "later"}


def test_a_snapshot_whose_reply_was_lost_is_one(world: World) -> None:
    sandbox = awake(world)
    world.carriers["n1"] = lost(Capture)
    world.snapshot(sandbox)
    first, second = world.requests(Capture)
    assert first == second


def test_forks_are_sandboxes_of_their_own(world: World) -> None:
    sandbox = awake(world)
    copies = world.fork(sandbox, 2, "copy")
    assert [copy.sandbox.name for copy in copies] == ["copy-1", "copy-2"]
    assert [copy.generation for copy in copies] == [1, 1]
    first, second = (copy.sandbox.id for copy in copies)
    world.machine.write(first, "own", "1")
    assert world.machine.files(first) == {"f": "kept", "own": "1"}
    assert world.machine.files(second) == {"f": "kept"}
    assert world.machine.files(sandbox) == {"f": "kept"}
    world.kill(sandbox)
    world.pause(first)
    world.connect(first)
    assert world.machine.files(first) == {"f": "kept", "own": "1"}


def test_a_fork_of_a_paused_one_uses_what_it_rests_on(world: World) -> None:
    sandbox = awake(world)
    artifact = world.pause(sandbox).artifact
    world.sent.clear()
    (copy,) = world.fork(sandbox, name="b")
    (started,) = world.requests(Activate)
    assert started.artifact == artifact
    assert not world.requests(Capture)
    assert world.machine.files(copy.sandbox.id) == {"f": "kept"}
    assert world.row(sandbox).state is ControlState.PAUSED


def test_forks_are_made_all_or_none(world: World) -> None:
    sandbox = awake(world)
    calls = itertools.count()

    def third_fails(request: Any, ask: Callable[[], Any]) -> Any:
        if isinstance(request, Activate) and next(calls) >= 2:
            raise signed(Code.INVALID, "PrepareFailed", request.node_store_id)
        return ask()

    world.carriers["n1"] = third_fails
    with pytest.raises(FluxError):
        world.fork(sandbox, 3, "copy")
    assert world.machine.running == {(sandbox, 1)}
    assert not any(world.exists(f"copy-{number}") for number in (1, 2, 3))


ORDERS = list(itertools.permutations(["pause", "snapshot", "kill"]))


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order) for order in ORDERS])
@pytest.mark.parametrize("point", [Point.PAUSE_RECORDED, Point.PAUSE_ANSWERED, Point.SNAPSHOT_ANSWERED])
def test_pause_snapshot_and_kill_at_once_come_to_one_result(
    worlds: Worlds, order: tuple[str, ...], point: Point
) -> None:
    """The second is asked in the middle of the first, the third in the middle of the second."""
    world = worlds("n1")
    sandbox = awake(world)
    outcomes: dict[str, Any] = {}

    def do(names: tuple[str, ...]) -> None:
        if not names:
            return
        name, *rest = names
        for at in (point, Point.KILL_RECORDED):
            world.at[at] = lambda: do(tuple(rest))
        try:
            outcomes[name] = getattr(world, name)(sandbox)
        except FluxError as error:
            outcomes[name] = error
        do(tuple(other for other in rest if other not in outcomes))

    do(order)
    assert set(outcomes) == {"pause", "snapshot", "kill"}
    assert not isinstance(outcomes["kill"], FluxError), outcomes
    for name in ("pause", "snapshot"):
        if isinstance(outcomes[name], FluxError):
            assert outcomes[name].code in (Code.NOT_FOUND, Code.UNAVAILABLE), outcomes
    world.at.clear()
    world.sweep()
    assert not world.exists(sandbox)
    assert not world.machine.running
    assert not world.machine.trees
