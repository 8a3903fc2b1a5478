"""Wakes: every answer of a node, and what comes of it (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flux.control import answers, sweep, wake
from flux.control.answers import Answer
from flux.core.errors import Code, FluxError
from flux.core.fence import FINAL, STATUS, Ended, EndedAs, Reason
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, Destroy, Inventory, Suspend, TearDown
from flux.failpoints import Point
from tests.control.conftest import Worlds
from tests.control.kit import ADMIN, Carrier, World, down, lost, signed

OWN, OTHER = "store-1", "store-2"


def refusal(reason: str, code: Code = Code.FENCED, store: str | None = OWN) -> FluxError:
    details = {"reason": reason} | ({} if store is None else {"node_store_id": store})
    return FluxError(code, "cannot start", details)


ANSWERS = [
    *[(refusal(reason.value, STATUS[reason][0]), Answer.FINAL) for reason in sorted(FINAL)],
    (refusal("PredecessorRunning"), Answer.PREDECESSOR),
    (refusal("RowBusy", Code.UNAVAILABLE), Answer.BUSY),
    (refusal("AttemptReused", Code.INVALID), Answer.HOPELESS),
    (refusal("ColdStartOfSaved", Code.INVALID), Answer.HOPELESS),
    (refusal("PrepareFailed", Code.INVALID), Answer.HOPELESS),
    (refusal("PrepareFailed", Code.INTERNAL), Answer.FAILED),
    (refusal("AdmissionFailed", Code.EXHAUSTED), Answer.FAILED),
    (refusal("ArtifactMissing", Code.NOT_FOUND), Answer.FAILED),
    (refusal("OtherStore", Code.FENCED, OTHER), Answer.OTHER_STORE),
    (refusal("RetiredGeneration", Code.FENCED, OTHER), Answer.UNKNOWN),  # another store's word is nobody's
    (refusal("RetiredGeneration", Code.FENCED, None), Answer.UNKNOWN),
    (FluxError(Code.UNAVAILABLE, "cannot reach it"), Answer.UNKNOWN),
    (FluxError(Code.INTERNAL, "cannot say", {"node_store_id": OWN}), Answer.UNKNOWN),
    (refusal("PrepareFailed", Code.UNKNOWN_OUTCOME), Answer.UNKNOWN),
]


@pytest.mark.parametrize(("error", "answer"), ANSWERS)
def test_what_an_error_means(error: FluxError, answer: Answer) -> None:
    assert answers.of(error, OWN) is answer


def test_an_ending_that_saved_nothing_newer_is_no_artifact() -> None:
    def ending(generation: int, ended_as: EndedAs, artifact: str | None) -> Ended:
        return Ended(generation=generation, ended_as=ended_as, artifact_id=artifact)

    old = ending(2, EndedAs.SUSPENDED, "a2")
    newer = ending(4, EndedAs.SUSPENDED, "a4")
    assert answers.newest_artifact((old, newer, ending(3, EndedAs.SUSPENDED, "a3")), 2) == newer
    assert answers.newest_artifact((old,), 2) is None
    assert answers.newest_artifact((ending(5, EndedAs.ROLLED_BACK, "a2"),), 2) is None
    assert answers.newest_artifact((ending(5, EndedAs.SUSPENDED, None),), 2) is None


@pytest.mark.parametrize("floor", [0, -1, "7", None, 2.5])
def test_only_a_number_is_a_floor(floor: Any) -> None:
    assert answers.floor_of({"floor": floor}) == 0
    assert answers.floor_of({"floor": 7}) == 7


def once(kind: type, make: Callable[[Any], FluxError], times: int = 1) -> Carrier:
    """Return a carrier that answers the first requests of a kind itself; they never reach the node."""
    left = [times]

    def carry(request: Any, ask: Callable[[], Any]) -> Any:
        if isinstance(request, kind) and left[0] > 0:
            left[0] -= 1
            raise make(request)
        return ask()

    return carry


def asleep(world: World) -> str:
    """Return a paused sandbox with a file."""
    sandbox = world.create().sandbox.id
    world.machine.write(sandbox, "f", "kept")
    world.pause(sandbox)
    world.sent.clear()
    world.points.clear()
    return sandbox


def test_a_failed_prepare_is_made_good_by_the_next_generation_in_the_same_call(world: World) -> None:
    sandbox = asleep(world)
    original = world.row(sandbox).artifact
    world.machine.fail("prepare")
    before = world.clock.boot_ns()
    woken = world.connect(sandbox)
    assert world.clock.boot_ns() == before, "nobody waited"
    assert (woken.generation, woken.artifact, woken.woke_from) == (3, original, "artifact")
    assert world.machine.files(sandbox) == {"f": "kept"}
    assert original is not None
    assert world.machine.restored_from(sandbox, 3) == original.id
    assert not world.requests(TearDown), "a definite failure needs no settling"
    first, second = world.requests(Activate)
    assert first.artifact == second.artifact == original
    assert first.route.attempt_id != second.route.attempt_id
    assert first.route.pod_uid != second.route.pod_uid


def test_two_failures_on_the_only_node_end_the_wake_with_the_original(world: World) -> None:
    sandbox = asleep(world)
    original = world.row(sandbox).artifact
    world.machine.fail("prepare", times=2)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.details["reason"] == "PrepareFailed"
    assert "stays paused" in failed.value.message
    row = world.row(sandbox)
    assert (row.state, row.artifact, row.generation) == (ControlState.PAUSED, original, 3)
    assert world.connect(sandbox).generation == 4
    assert world.machine.files(sandbox) == {"f": "kept"}


@pytest.mark.parametrize("reason", sorted(FINAL))
def test_a_final_refusal_mints_the_next_at_once(world: World, reason: Reason) -> None:
    sandbox = asleep(world)
    store = world.row(sandbox).node_store_id or ""
    world.carriers["n1"] = once(Activate, lambda _: signed(STATUS[reason][0], reason.value, store, floor=8))
    before = world.clock.boot_ns()
    woken = world.connect(sandbox)
    assert woken.generation == 9, "above the floor that the node reported"
    assert world.clock.boot_ns() == before
    assert world.machine.files(sandbox) == {"f": "kept"}


def test_refusals_have_a_budget_of_generations(world: World) -> None:
    sandbox = asleep(world)
    store = world.row(sandbox).node_store_id or ""
    world.carriers["n1"] = once(Activate, lambda _: signed(Code.FENCED, "RetiredGeneration", store), times=99)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.code is Code.UNAVAILABLE
    assert failed.value.details["reason"] == "RetiredGeneration"
    assert [request.route.generation for request in world.requests(Activate)] == [2, 3, 4, 5]
    assert world.row(sandbox).state is ControlState.PAUSED


def test_what_ended_is_accepted_before_the_next_mint(world: World) -> None:
    sandbox = asleep(world)
    place = world.places["n1"]

    def start_and_end(request: Activate, ask: Callable[[], Any]) -> Any:
        """The start's reply is lost, and its pod is deleted, with a file written in between."""
        ask()
        world.machine.write(sandbox, "later", "kept too")
        execution = world.row(sandbox).execution
        teardown = TearDown(sandbox_id=sandbox, node_store_id=request.node_store_id, execution=execution)
        place.manager.tear_down(teardown)
        world.carriers.clear()
        raise FluxError(Code.UNKNOWN_OUTCOME, "cannot tell: the connection was lost")

    world.carriers["n1"] = lambda request, ask: start_and_end(request, ask) if type(request) is Activate else ask()
    woken = world.connect(sandbox)
    assert woken.generation == 3
    assert world.machine.files(sandbox) == {"f": "kept", "later": "kept too"}
    row = world.row(sandbox)
    assert row.artifact_generation == 2
    assert world.machine.restored_from(sandbox, 3) == row.artifact_id


@pytest.mark.parametrize("before", [True, False])
def test_an_unknown_start_is_asked_again_as_the_same_attempt(world: World, before: bool) -> None:
    sandbox = asleep(world)
    world.carriers["n1"] = lost(Activate, times=2, before=before)
    woken = world.connect(sandbox)
    assert woken.generation == 2
    first, second, third = world.requests(Activate)
    assert first == second == third
    assert world.machine.generations_running(sandbox) == [2]


def test_what_stays_unknown_is_settled_by_a_teardown(world: World) -> None:
    sandbox = asleep(world)
    world.carriers["n1"] = lost(Activate, times=4)
    woken = world.connect(sandbox)
    assert woken.generation == 3
    (teardown,) = world.requests(TearDown)
    assert teardown.execution.generation == 2
    assert world.machine.files(sandbox) == {"f": "kept"}
    assert world.row(sandbox).artifact_generation == 2, "the teardown saved generation 2, and that is current now"


def test_a_busy_row_is_asked_again(world: World) -> None:
    sandbox = asleep(world)
    store = world.row(sandbox).node_store_id or ""
    world.carriers["n1"] = once(Activate, lambda _: signed(Code.UNAVAILABLE, "RowBusy", store), times=3)
    assert world.connect(sandbox).generation == 2
    assert len({request.route.attempt_id for request in world.requests(Activate)}) == 1


def test_a_predecessor_is_settled_and_what_it_saved_is_restored(world: World) -> None:
    """The registry lost a generation, as a failover without synchronous replication may: the node's word counts."""
    sandbox = asleep(world)
    row = world.row(sandbox)
    world.connect(sandbox)
    world.machine.write(sandbox, "later", "kept too")
    with world.registry.transaction() as tx:
        from flux.store.registry import sandboxes

        held = sandboxes.lock(tx, sandbox)
        assert held is not None
        sandboxes.write(
            tx, held, state=row.state, generation=1, attempt_id=row.attempt_id, pod_uid=row.pod_uid, woke_from=None
        )
    woken = world.connect(sandbox)
    assert woken.generation > 2
    assert world.machine.files(sandbox) == {"f": "kept", "later": "kept too"}
    assert world.machine.generations_running(sandbox) == [woken.generation]


def test_a_node_that_is_down_gives_a_typed_error_in_time(world: World) -> None:
    sandbox = asleep(world)
    world.carriers["n1"] = down
    before = world.clock.boot_ns()
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.code is Code.UNAVAILABLE
    assert failed.value.details["reason"] == "WakeTimedOut"
    assert 44 <= (world.clock.boot_ns() - before) / 1e9 <= 46
    world.carriers.clear()
    assert world.connect(sandbox).woke_from == "artifact"
    assert world.machine.files(sandbox) == {"f": "kept"}


def test_another_store_under_the_name_is_another_node(world: World) -> None:
    sandbox = asleep(world)
    world.carriers["n1"] = once(Activate, lambda _: signed(Code.FENCED, "OtherStore", "new-store"), times=99)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.details["reason"] == "OtherStore"
    assert world.row(sandbox).state is ControlState.PAUSED


def test_a_flipped_byte_is_an_error_and_the_original_stays(world: World) -> None:
    sandbox = asleep(world)
    original = world.row(sandbox).artifact
    assert original is not None
    world.machine.flip_a_byte(original.id)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.details["reason"] == "DataLoss"
    assert world.row(sandbox).artifact == original
    world.kill(sandbox)
    assert not world.exists(sandbox)


def test_the_next_candidate_gets_a_new_generation(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    other = {"n1": "n2", "n2": "n1"}[home]
    world.places[home].machine.write(sandbox, "f", "kept")
    world.pause(sandbox)
    world.uploaded(home)
    assert world.row(sandbox).artifact_durable
    world.places[home].machine.fail("prepare")
    woken = world.connect(sandbox)
    assert (woken.node, woken.generation) == (other, 3)
    assert world.places[other].machine.files(sandbox) == {"f": "kept"}
    assert not world.places[home].machine.running


def unreachable(_: Any) -> FluxError:
    return FluxError(Code.UNAVAILABLE, "cannot reach the node", {"reason": answers.NODE_UNREACHABLE})


def durable_on(world: World) -> tuple[str, str, str]:
    """Return a paused sandbox that the object store has, its node, and the other one."""
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    world.places[home].machine.write(sandbox, "f", "kept")
    world.pause(sandbox)
    world.uploaded(home)
    return sandbox, home, {"n1": "n2", "n2": "n1"}[home]


def test_what_was_never_sent_is_tried_elsewhere_at_once(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox, home, other = durable_on(world)
    world.carriers[home] = once(object, unreachable, times=99)
    before = world.clock.boot_ns()
    woken = world.connect(sandbox)
    assert (woken.node, woken.generation, woken.woke_from) == (other, 3, "artifact")
    assert world.places[other].machine.files(sandbox) == {"f": "kept"}
    assert world.clock.boot_ns() - before < 10**9


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_start_waits_for_no_wake_on_another_node(worlds: Worlds, elsewhere: bool) -> None:
    """What a crash left is driven on at once where the node is this process, and else by the first sweeps."""
    world = worlds("n1", "n2")
    sandbox, home, other = durable_on(world)
    dead = world.process()
    abandoned = wake.connect(dead, ADMIN, sandbox)
    while next(abandoned) is not Point.WAKE_MINTED:
        pass
    control = world.process()
    control.local = other if elsewhere else home
    world.carriers[home] = down if elsewhere else (lambda _, ask: ask())
    before = world.clock.boot_ns()
    world.run(sweep.recover(control))
    assert world.clock.boot_ns() - before < 10**9
    assert (world.row(sandbox).state is ControlState.RUNNING) is not elsewhere
    world.carriers.clear()
    assert world.connect(sandbox).state is ControlState.RUNNING


def test_what_may_have_been_sent_is_waited_for(worlds: Worlds) -> None:
    """A lost request, then a node that is gone: something may have started, so nothing starts elsewhere."""
    world = worlds("n1", "n2")
    sandbox, home, _ = durable_on(world)
    lost = [FluxError(Code.UNKNOWN_OUTCOME, "cannot tell")]
    world.carriers[home] = once(object, lambda request: lost.pop() if lost else unreachable(request), times=999)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.details["reason"] == "WakeTimedOut"
    assert (world.row(sandbox).node, world.row(sandbox).generation) == (home, 2)


def test_what_another_process_may_have_sent_is_waited_for(worlds: Worlds) -> None:
    """The wake is another process's, which died after it had minted: what it had sent, nobody knows (I1)."""
    world = worlds("n1", "n2")
    sandbox, home, _ = durable_on(world)
    dead = world.process()
    abandoned = wake.connect(dead, ADMIN, sandbox)
    while next(abandoned) is not Point.WAKE_MINTED:
        pass
    world.carriers[home] = once(object, unreachable, times=999)
    with pytest.raises(FluxError) as failed:
        world.connect(sandbox)
    assert failed.value.details["reason"] == "WakeTimedOut"
    assert (world.row(sandbox).node, world.row(sandbox).generation) == (home, 2)


def test_a_wake_stays_where_its_only_copy_is(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    world.pause(sandbox)
    world.places[home].machine.fail("prepare")
    assert world.connect(sandbox).node == home


def test_kill_wins_at_every_point_of_a_wake(worlds: Worlds) -> None:
    tried = [Point.WAKE_MINTED, Point.WAKE_ANSWERED, Point.WAKE_PUBLISHED]
    for point in tried:
        world = worlds("n1")
        sandbox = asleep(world)
        world.at[point] = lambda world=world, sandbox=sandbox: world.kill(sandbox)
        with pytest.raises(FluxError) as failed:
            world.connect(sandbox)
        assert failed.value.code is Code.NOT_FOUND, point
        world.sweep()
        assert not world.exists(sandbox), point
        assert not world.machine.running, point
        assert world.requests(Destroy), point
        (activate, *_) = world.requests(Activate) or [None]
        if activate is not None:
            with pytest.raises(FluxError) as refused:
                world.places["n1"].manager.activate(activate)
            assert refused.value.details["reason"] == "RetiredGeneration"
        world.close()
        for name in ("control.db", "n1.db"):
            for suffix in ("", "-wal", "-shm"):
                (world.folder / f"{name}{suffix}").unlink(missing_ok=True)


def test_the_clock_set_back_an_hour_changes_nothing(world: World) -> None:
    sandbox = asleep(world)
    world.clock.set_wall(world.clock.wall() - 3600)
    generations = []
    for _ in range(3):
        generations.append(world.connect(sandbox).generation)
        world.pause(sandbox)
    assert generations == [2, 3, 4]
    assert world.machine.restored_from(sandbox, 4) is not None


def test_a_stopped_sandbox_wakes_from_its_last_artifact_and_says_so(world: World) -> None:
    sandbox = asleep(world)
    original = world.row(sandbox).artifact
    world.connect(sandbox)
    world.machine.write(sandbox, "unsaved", "lost")
    world.machine.survives = frozenset()
    world.machine.power_cycle()
    world.places["n1"].restart()
    swept = world.sweep()
    assert swept.lost == (sandbox,)
    row = world.row(sandbox)
    assert (row.state, row.stopped, row.artifact) == (ControlState.PAUSED, True, original)
    woken = world.connect(sandbox)
    assert (woken.woke_from, woken.artifact) == ("last_artifact_after_stop", original)
    assert world.machine.files(sandbox) == {"f": "kept"}
    assert "sandbox.lost" in [line.event for line in world.lines]


def test_a_wake_is_gone_on_with_after_the_control_plane_died(world: World) -> None:
    sandbox = asleep(world)

    class Died(BaseException):
        pass

    for point in (Point.WAKE_MINTED, Point.WAKE_ANSWERED):
        world.at[point] = lambda: (_ for _ in ()).throw(Died())
        with pytest.raises(Died):
            world.connect(sandbox)
        world.control = world.process()
        before = world.row(sandbox)
        assert before.state is ControlState.WAKING
        world.clock.advance(10)
        woken = world.connect(sandbox)
        assert woken.generation == before.generation
        assert world.machine.generations_running(sandbox) == [woken.generation]
        world.pause(sandbox)


def test_an_inventory_asks_for_nothing_of_a_sandbox_in_a_wake(world: World) -> None:
    sandbox = asleep(world)
    world.at[Point.WAKE_MINTED] = lambda: world.sweep(world.process(takeover_seconds=99.0))
    world.connect(sandbox)
    (inventory,) = world.requests(Inventory)
    assert inventory.facts == ()
    assert not world.requests(Suspend)
