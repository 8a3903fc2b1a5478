"""Suspend, snapshot, stop: what they save, what a failure leaves, what a repetition gets (§6)."""

from __future__ import annotations

import pytest

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.node import Suspend
from flux.engine.node import suspend
from flux.failpoints import Point
from tests.engine.node.kit import ID, Kit, failing


def test_a_repeated_suspend_returns_the_same_artifact_and_queues_nothing(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.write(ID, "file", "x")
    first = kit.suspend(1)
    again = kit.suspend(1)
    assert (first.new_job, again.new_job, again.artifact) == (True, False, first.artifact)
    assert kit.jobs() == 1
    assert kit.endings() == {1: ("suspended", first.artifact.id)}
    assert kit.machine.saved[first.artifact.id].files == {"file": "x"}


def test_only_the_execution_that_holds_the_row_is_suspended(kit: Kit) -> None:
    kit.activate(2)
    before = kit.contents()
    for generation, pod_uid in ((1, "p1"), (2, "other"), (3, "p3")):
        with failing("StaleGeneration", Code.FENCED):
            kit.suspend(generation, pod_uid)
        with failing("StaleGeneration", Code.FENCED):
            kit.stop(generation, pod_uid)
        with failing("StaleGeneration", Code.FENCED):
            kit.capture(generation, pod_uid=pod_uid)
        with failing("StaleGeneration", Code.FENCED):
            kit.evict(generation, pod_uid)
    with failing("UnknownSandbox", Code.NOT_FOUND):
        kit.suspend(1, sandbox_id="other")
    assert kit.contents() == before


@pytest.mark.parametrize("call", ["quiesce", "capture"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_before_the_artifact_is_named_leaves_it_running(kit: Kit, call: str, after: bool) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    kit.machine.write(ID, "more", "y")
    kit.machine.fail(call, FluxError(Code.EXHAUSTED, "full"), after=after)
    with failing("SuspendFailed", Code.EXHAUSTED):
        kit.suspend(2)
    assert (kit.must().state, kit.must().artifact_id) == (NodeState.RUNNING, original.id)
    assert (kit.machine.frozen, kit.artifacts(), kit.jobs()) == (set(), [original.id], 1)
    second = kit.suspend(2).artifact
    assert kit.machine.saved[second.id].files == {"file": "original", "more": "y"}
    assert kit.machine.saved[second.id].parent == original.id


def test_after_it_is_named_a_failure_is_driven_on(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.fail("end")
    with failing(None, Code.UNKNOWN_OUTCOME):
        kit.suspend(1)
    assert kit.must().state is NodeState.SUSPENDING
    found = kit.suspend(1)
    assert (kit.must().state, kit.must().artifact_id, kit.jobs()) == (NodeState.SUSPENDED, found.artifact.id, 1)
    assert kit.machine.trees == {}


def test_a_dead_execution_is_stopped_and_wakes_from_its_last_artifact(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    kit.machine.survives = frozenset()
    kit.machine.die(ID, 2)
    with failing("NotRunning", Code.ILLEGAL_STATE, "resume it first"):
        kit.suspend(2)
    assert (kit.must().state, kit.must().artifact_id) == (NodeState.STOPPED, original.id)
    kit.activate(3, original)
    assert kit.machine.files(ID) == {"file": "original"}


def test_a_host_that_died_is_noticed_and_the_sandbox_is_stopped(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    kit.machine.survives = frozenset()
    kit.machine.power_cycle()
    kit.crash()
    assert (kit.must().state, kit.endings()[2]) == (NodeState.STOPPED, ("stopped", None))
    assert kit.stop(2).artifact == original


def test_stop_keeps_the_last_artifact_current(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    first = kit.stop(2)
    assert (first.generation, first.artifact) == (2, original)
    assert kit.stop(2) == first
    assert (kit.must().state, kit.artifacts(), kit.machine.running) == (NodeState.STOPPED, [original.id], set())


def test_a_snapshot_is_never_the_current_artifact_and_has_one_result_for_its_id(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    kit.machine.write(ID, "more", "y")
    shot = kit.capture(2).artifact
    assert (kit.must().state, kit.must().artifact_id) == (NodeState.RUNNING, original.id)
    assert kit.machine.frozen == set()
    assert kit.machine.saved[shot.id].files == {"file": "original", "more": "y"}
    kit.machine.write(ID, "more", "later")
    assert kit.capture(2).artifact == shot
    assert kit.capture(2, "other").artifact != shot
    kit.suspend(2)
    assert kit.capture(2).artifact == shot
    with failing("NotRunning", Code.ILLEGAL_STATE):
        kit.capture(2, "third")


@pytest.mark.parametrize("call", ["quiesce", "capture"])
def test_a_snapshot_that_fails_lets_the_sandbox_run_on(kit: Kit, call: str) -> None:
    kit.activate(1)
    kit.machine.fail(call, after=True)
    with failing("SnapshotFailed", Code.INTERNAL):
        kit.capture(1)
    assert (kit.must().state, kit.machine.frozen, kit.artifacts()) == (NodeState.RUNNING, set(), [])


def test_a_bound_sandbox_uploads_nothing_and_is_never_evicted(kit: Kit) -> None:
    kit.activate(1, sandbox=kit.sandbox(layout="bound", workspace="/w"))
    found = kit.suspend(1)
    assert (found.new_job, kit.jobs()) == (False, 0)
    kit.clock.advance(10_000)
    with failing("NotEvictable", Code.ILLEGAL_STATE):
        kit.evict(1)
    assert kit.manager.evict_idle() == []


def test_a_suspension_is_busy_for_everybody_else(kit: Kit) -> None:
    kit.activate(1)
    first = suspend.steps(kit.node, Suspend(**kit.evidence(1)))
    while next(first) is not Point.SUSPEND_QUIESCED:
        pass
    with failing("RowBusy", Code.UNAVAILABLE):
        kit.suspend(1)
    with failing("RowBusy", Code.UNAVAILABLE):
        kit.stop(1)
    with failing("RowBusy", Code.UNAVAILABLE):
        kit.activate(1)
