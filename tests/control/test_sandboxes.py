"""Creating, deleting, finding and timing out (spec: sandboxes; generations, §9)."""

from __future__ import annotations

import pytest

from flux.control import artifacts, nodes, sweep, timeouts, views
from flux.core.access import Actor, Role
from flux.core.control import Adoption, SandboxFilter
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState, NodeState
from flux.core.node import Activate, Destroy, TearDown
from flux.core.sandbox import Sandbox
from flux.failpoints import Point
from flux.store.registry import starts
from tests.control.conftest import Worlds
from tests.control.kit import ADMIN, ANN, BOB, World, down, lost


def test_one_key_makes_one_sandbox(world: World) -> None:
    first = world.create(key="k", name="a")
    assert world.create(key="k", name="a").sandbox.id == first.sandbox.id
    with pytest.raises(FluxError) as other:
        world.create(key="k", name="b")
    assert other.value.code is Code.ALREADY_EXISTS
    assert world.create(ANN, key="k", name="c").sandbox.id != first.sandbox.id
    world.kill("a")
    assert world.create(key="k", name="a").sandbox.id != first.sandbox.id
    world.clock.advance(world.control.settings.idempotency_seconds + 1)
    assert world.create(key="k", name="d").sandbox.name == "d"


@pytest.mark.parametrize("point", [Point.WAKE_RECORDED, Point.WAKE_ANSWERED])
def test_a_request_with_the_key_of_one_under_way_joins_it(world: World, point: Point) -> None:
    joined = []
    world.control.settings = world.process(nap_seconds=0.1).settings

    def again() -> None:
        try:
            joined.append(world.create(key="k").sandbox.id)
        except FluxError as error:
            joined.append(error)

    world.at[point] = again
    made = world.create(key="k")
    if point is Point.WAKE_RECORDED:
        assert joined == [made.sandbox.id]
    else:  # the other one drives it in this very thread: the joiner can only wait, and says so
        assert joined[0].details["reason"] == "WakeTimedOut"
    assert len({request.sandbox_id for request in world.requests(Activate)}) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\t", "ü"])
def test_a_bad_key_is_refused(world: World, key: str) -> None:
    with pytest.raises(FluxError) as refused:
        world.create(key=key)
    assert refused.value.code is Code.INVALID


def test_a_failed_start_leaves_nothing(world: World) -> None:
    world.machine.fail("prepare", times=2)
    with pytest.raises(FluxError) as failed:
        world.create(name="a", key="k")
    assert failed.value.details["reason"] == "PrepareFailed"
    assert "nothing is left of it" in failed.value.message
    assert not world.exists("a")
    assert not world.machine.trees
    assert world.places["n1"].manager.list().rows == ()
    assert world.create(name="a", key="k").state is ControlState.RUNNING


def test_an_invalid_request_makes_no_row(world: World) -> None:
    with pytest.raises(FluxError) as refused:
        world.create(kind="unknown", name="a")
    assert refused.value.code is Code.INVALID
    assert not world.exists("a")
    assert not world.sent


def test_a_name_is_one_living_sandboxs(world: World) -> None:
    world.create(name="a")
    with pytest.raises(FluxError) as taken:
        world.create(name="a")
    assert taken.value.code is Code.ALREADY_EXISTS
    sandbox = world.row("a").id
    world.carriers["n1"] = down
    world.kill("a")
    assert world.row(sandbox).state is ControlState.KILLING
    world.carriers.clear()
    assert world.create(name="a").generation == 1


def test_others_sandboxes_do_not_exist(world: World) -> None:
    sandbox = world.create(ANN, name="a").sandbox.id
    for see in (
        lambda: views.get_sandbox(world.control, BOB, sandbox),
        lambda: views.locate(world.control, BOB, "a"),
        lambda: world.pause(sandbox, actor=BOB),
        lambda: world.connect(sandbox, actor=BOB),
        lambda: world.kill(sandbox, actor=BOB),
    ):
        with pytest.raises(FluxError) as hidden:
            see()
        assert hidden.value.code is Code.NOT_FOUND
    assert views.list_sandboxes(world.control, BOB, 10, None, SandboxFilter()).items == []
    reviewer = Actor(name="r", role=Role.REVIEWER, key_id="kyr")
    assert [
        status.sandbox.id for status in views.list_sandboxes(world.control, reviewer, 10, None, SandboxFilter()).items
    ] == [sandbox]
    nobody = Actor(name="x", role=Role.USER)
    assert views.list_sandboxes(world.control, nobody, 10, None, SandboxFilter()).items == []


def test_lists_are_read_page_by_page(world: World) -> None:
    made = [world.create().sandbox.id for _ in range(5)]
    world.pause(made[1])
    found, cursor = [], None
    while True:
        page = views.list_sandboxes(world.control, ADMIN, 2, cursor, SandboxFilter())
        found += [status.sandbox.id for status in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == made[::-1]
    paused = views.list_sandboxes(world.control, ADMIN, 10, None, SandboxFilter(states=(ControlState.PAUSED,)))
    assert [status.sandbox.id for status in paused.items] == [made[1]]
    for limit, wrong in ((0, None), (1001, None), (1, "x"), (1, "-1")):
        with pytest.raises(FluxError) as refused:
            views.list_sandboxes(world.control, ADMIN, limit, wrong, SandboxFilter())
        assert refused.value.code is Code.INVALID


def test_a_sandbox_is_located_while_it_runs(world: World) -> None:
    sandbox = world.create().sandbox.id
    located = views.locate(world.control, ADMIN, sandbox)
    row = world.row(sandbox)
    assert (located.node, located.generation, located.pod_uid) == ("n1", 1, row.pod_uid)
    assert (located.address, located.local) == ("n1.data:1", True)
    assert located.credential
    world.pause(sandbox)
    assert world.row(sandbox).credential == ""
    with pytest.raises(FluxError) as refused:
        views.locate(world.control, ADMIN, sandbox)
    assert refused.value.code is Code.ILLEGAL_STATE
    assert "resume it first" in refused.value.message
    world.connect(sandbox)
    assert views.locate(world.control, ADMIN, sandbox).credential != located.credential


# Time-outs


def test_a_time_out_kills_or_pauses(world: World) -> None:
    killed = world.create(ttl_seconds=60).sandbox.id
    paused = world.create(ttl_seconds=60, on_timeout="pause").sandbox.id
    kept = world.create().sandbox.id
    world.clock.advance(59)
    assert world.sweep().timed_out == ()
    world.clock.advance(2)
    with pytest.raises(FluxError):  # gone at once, whenever the sweep comes
        views.get_sandbox(world.control, ADMIN, killed)
    assert world.sweep().timed_out == (killed, paused)
    assert not world.exists(killed)
    assert world.row(paused).state is ControlState.PAUSED
    assert world.row(kept).state is ControlState.RUNNING
    assert {(line.event, line.actor) for line in world.lines if line.details.get("reason") == "time-out"} == {
        ("sandbox.delete", "flux"),
        ("sandbox.pause", "flux"),
    }


def test_a_wall_clock_set_forward_times_nothing_out(world: World) -> None:
    sandbox = world.create(ttl_seconds=60).sandbox.id
    world.clock.set_wall(world.clock.wall() + 86400)
    assert world.sweep().timed_out == ()
    world.clock.reboot(120)
    world.sweep()
    assert not world.exists(sandbox)


@pytest.mark.parametrize(("left", "asked", "after"), [(3600, 60, 3600), (60, 3600, 3600), (None, 60, None)])
def test_a_connect_never_shortens_what_is_left(world: World, left: int | None, asked: int, after: int | None) -> None:
    sandbox = world.create(ttl_seconds=left).sandbox.id
    status = world.connect(sandbox, asked)
    expected = None if after is None else world.clock.wall() + after
    assert status.sandbox.expires_at == expected
    assert world.row(sandbox).expires_at == expected


def test_a_paused_sandboxs_time_begins_when_it_wakes(world: World) -> None:
    sandbox = world.create(ttl_seconds=60).sandbox.id
    world.pause(sandbox)
    world.clock.advance(86400)
    assert world.sweep().timed_out == ()
    assert world.connect(sandbox).sandbox.expires_at == world.clock.wall() + 60
    world.pause(sandbox)
    assert world.connect(sandbox, 120).sandbox.expires_at == world.clock.wall() + 120


def test_a_time_out_can_be_set(world: World) -> None:
    sandbox = world.create(ttl_seconds=3600).sandbox.id
    status = timeouts.set_timeout(world.control, ADMIN, sandbox, 10)
    assert status.sandbox.expires_at == world.clock.wall() + 10
    assert timeouts.set_timeout(world.control, ADMIN, sandbox, None).sandbox.expires_at is None
    with pytest.raises(FluxError) as refused:
        timeouts.set_timeout(world.control, ADMIN, sandbox, 0)
    assert refused.value.code is Code.INVALID


# Kills


def test_a_kill_goes_to_every_node_that_was_ever_sent_a_start(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    other = {"n1": "n2", "n2": "n1"}[home]
    world.pause(sandbox)
    world.uploaded(home)
    world.places[home].machine.fail("prepare")
    assert world.connect(sandbox).node == other
    world.carriers[home] = down
    world.sent.clear()
    world.kill(sandbox)
    assert {name for name, request in world.sent if isinstance(request, Destroy)} == {home, other}
    with world.registry.reading() as tx:
        held = {start.node: start.acknowledged for start in starts.of(tx, sandbox)}
    assert held == {home: False, other: True}
    assert world.row(sandbox).state is ControlState.KILLING
    world.carriers.clear()
    world.sweep()
    assert not world.exists(sandbox)
    assert world.places[home].manager.list().rows == ()


def test_a_tombstone_is_told_to_a_node_that_comes_back(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.carriers["n1"] = lost(Destroy, times=10**6, before=True)
    world.kill(sandbox)
    assert world.exists(sandbox)
    world.sweep()  # the inventory carries the tombstone too, and is answered with what is done
    assert not world.exists(sandbox)
    assert not world.machine.running


# Nodes


def test_a_lost_node_with_the_only_copy_is_unavailable_and_never_older(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    other = {"n1": "n2", "n2": "n1"}[home]
    world.places[home].machine.write(sandbox, "f", "1")
    world.pause(sandbox)
    world.uploaded(home)
    world.connect(sandbox)
    world.places[home].machine.write(sandbox, "f", "2")
    newest = world.pause(sandbox).artifact
    world.carriers[home] = down
    nodes.forget(world.control, ADMIN, home)
    with pytest.raises(FluxError) as refused:
        world.connect(sandbox)
    assert (refused.value.code, refused.value.details["reason"]) == (Code.UNAVAILABLE, "OnLostNode")
    assert world.row(sandbox).artifact == newest
    assert not world.places[other].machine.running


def test_what_ran_on_a_forgotten_node_wakes_elsewhere_and_is_ended_there_when_it_returns(worlds: Worlds) -> None:
    world = worlds("n1", "n2")
    sandbox = world.create().sandbox.id
    home = world.row(sandbox).node or ""
    other = {"n1": "n2", "n2": "n1"}[home]
    world.places[home].machine.write(sandbox, "f", "saved")
    world.pause(sandbox)
    world.uploaded(home)
    assert world.connect(sandbox).node == home
    world.places[home].machine.write(sandbox, "f", "unsaved")
    saved = set(world.places[home].machine.saved)
    with pytest.raises(FluxError):
        world.carriers[home] = down
        world.pause(sandbox)
    nodes.forget(world.control, ADMIN, home)
    woken = world.connect(sandbox)
    assert (woken.node, woken.woke_from) == (other, "last_artifact_after_stop")
    assert world.places[other].machine.files(sandbox) == {"f": "saved"}
    world.carriers.clear()
    world.run(nodes.add(world.control, home, f"{home}:1"))
    world.sweep()
    assert world.places[home].machine.generations_running(sandbox) == []
    assert set(world.places[home].machine.saved) <= saved, "a stale execution is not saved"
    assert world.places[other].machine.files(sandbox) == {"f": "saved"}
    assert world.row(sandbox).state is ControlState.RUNNING


def test_nodes_have_names_of_their_own(world: World) -> None:
    with pytest.raises(FluxError) as twice:
        world.run(nodes.add(world.control, "n1", "elsewhere:1"))
    assert twice.value.code is Code.ALREADY_EXISTS
    with pytest.raises(FluxError) as unnamed:
        world.run(nodes.add(world.control, "n 1", "elsewhere:1"))
    assert unnamed.value.code is Code.INVALID
    with pytest.raises(FluxError) as unknown:
        nodes.get(world.control, "n9")
    assert unknown.value.code is Code.NOT_FOUND
    assert [node.name for node in nodes.every(world.control)] == ["n1"]


# Artifacts


def test_snapshots_are_listed_and_deleted(world: World) -> None:
    sandbox = world.create(ANN).sandbox.id
    taken = world.snapshot(sandbox, "s").artifact
    world.pause(sandbox)
    listed = artifacts.every(world.control, ANN, sandbox)
    assert sorted((held.kind, held.current) for held in listed) == [("snapshot", False), ("suspend", True)]
    assert artifacts.every(world.control, BOB) == []
    assert artifacts.get(world.control, ANN, "s").id == taken.id
    with pytest.raises(FluxError) as hidden:
        artifacts.get(world.control, BOB, "s")
    assert hidden.value.code is Code.NOT_FOUND
    current = next(held for held in listed if held.current)
    with pytest.raises(FluxError) as refused:
        artifacts.delete(world.control, ANN, current.id)
    assert refused.value.code is Code.NOT_APPLICABLE
    assert artifacts.needed(world.control) == {taken.id, current.id}
    artifacts.delete(world.control, ANN, "s")
    assert artifacts.needed(world.control) == {current.id}


def test_what_a_sandbox_rests_on_is_not_deleted(world: World) -> None:
    sandbox = world.create().sandbox.id
    taken = world.snapshot(sandbox, "s").artifact
    world.kill(sandbox)
    assert artifacts.needed(world.control) == {taken.id}
    world.create(snapshot="s")
    with pytest.raises(FluxError) as refused:
        artifacts.delete(world.control, ADMIN, taken.id)
    assert refused.value.code is Code.CONFLICT


def test_what_was_saved_for_forks_goes_with_them(world: World) -> None:
    sandbox = world.create().sandbox.id
    first, second = world.fork(sandbox, 2)
    assert first.artifact is not None and first.artifact == second.artifact
    assert [held.kind for held in artifacts.every(world.control, ADMIN)] == ["suspend"]
    world.kill(first.sandbox.id)
    assert artifacts.needed(world.control) == {first.artifact.id}
    world.kill(second.sandbox.id)
    assert artifacts.needed(world.control) == set()


def test_a_predecessor_is_needed_until_its_successor_is_durable(world: World) -> None:
    sandbox = world.create().sandbox.id
    first = world.pause(sandbox).artifact
    world.connect(sandbox)
    world.clock.advance(1)
    second = world.pause(sandbox).artifact
    assert first is not None and second is not None
    assert artifacts.needed(world.control) == {first.id, second.id}
    world.uploaded()
    assert artifacts.needed(world.control) == {second.id}


# Adoption


@pytest.mark.parametrize("running", [True, False])
def test_what_the_node_had_before_there_was_a_registry_is_adopted(world: World, running: bool) -> None:
    record = Sandbox(
        id="sb00000000000000aa", kind="fake", layout="managed", state=NodeState.RUNNING, created_at=1.0,
        root_device=0, root_inode=0, name="old", template="", owner="kyann",
    )  # fmt: skip
    adoption = Adoption(sandbox=record, running=running, generation=4, attempt_id="imported", pod_uid="imported")
    found = world.run(sweep.recover(world.control, [adoption]))
    assert found.adopted == (record.id,)
    assert world.run(sweep.recover(world.control, [adoption])).adopted == ()
    with world.registry.reading() as tx:
        assert [start.node for start in starts.of(tx, record.id)] == ["n1"]
    status = views.get_sandbox(world.control, ANN, "old")
    assert status.generation == 4
    if not running:
        assert world.connect("old").generation == 5


def test_an_execution_of_another_generation_is_never_torn_down_by_a_late_one(world: World) -> None:
    sandbox = world.create().sandbox.id
    first = world.row(sandbox)
    world.pause(sandbox)
    world.connect(sandbox)
    late = TearDown(sandbox_id=sandbox, node_store_id=first.node_store_id or "", execution=first.execution)
    assert world.places["n1"].manager.tear_down(late).outcome.value == "superseded(newer)"
    assert world.machine.generations_running(sandbox) == [2]
    assert world.sweep().lost == ()
    assert world.row(sandbox).state is ControlState.RUNNING
