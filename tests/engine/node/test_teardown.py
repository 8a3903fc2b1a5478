"""The table of §7, row by row, with reasons, artifacts and jobs; what it retires; what it cancels."""

from __future__ import annotations

import pytest

from flux.core.errors import Code
from flux.core.fence import Teardown
from flux.core.lifecycle import NodeState
from flux.core.node import TearDown, TornDown
from flux.engine.node import activate, teardown
from flux.failpoints import Point, Steps
from tests.engine.node.kit import ID, Kit, failing


def answer(steps: Steps[TornDown]) -> TornDown:
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    found: TornDown = done.value.value
    return found


def test_a_running_execution_is_suspended_with_one_job(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.write(ID, "file", "x")
    found = kit.tear_down(1)
    assert (found.outcome, found.new_job, found.floor) == (Teardown.SUSPENDED, True, 1)
    assert found.artifact is not None
    assert kit.must().artifact_id == found.artifact.id
    assert (kit.artifacts(), kit.jobs()) == ([found.artifact.id], 1)
    again = kit.tear_down(1)
    assert (again.outcome, again.new_job, again.artifact) == (Teardown.SUSPENDED, False, found.artifact)
    assert kit.jobs() == 1


def test_a_rolled_back_generation_is_superseded_by_the_original(kit: Kit) -> None:
    """I5: no snapshot, no artifact, no upload."""
    original = kit.rolled_back()
    log = list(kit.machine.log)
    found = kit.tear_down(2)
    assert (found.outcome, found.artifact, found.new_job) == (Teardown.ROLLED_BACK, original, False)
    assert (kit.artifacts(), kit.jobs(), kit.machine.log) == ([original.id], 1, log)
    assert {one.generation: one.ended_as.value for one in found.ended} == {1: "suspended", 2: "rolled_back"}
    kit.activate(3, original)
    assert kit.machine.restored_from(ID, 3) == original.id


def test_without_a_receipt_nothing_is_excused_but_nothing_is_captured_either(kit: Kit) -> None:
    kit.rolled_back()
    kit.set_receipt("{broken")
    found = kit.tear_down(2)
    assert (found.outcome, found.artifact) == (Teardown.NOTHING_RUNNING, None)


def test_a_created_sandbox_that_was_rolled_back(kit: Kit) -> None:
    kit.machine.fail("start")
    with failing("StartFailed", Code.INTERNAL):
        kit.activate(2)
    assert kit.tear_down(1).outcome is Teardown.ROLLED_BACK
    assert kit.tear_down(2).outcome is Teardown.ROLLED_BACK
    assert kit.tear_down(3).outcome is Teardown.NOTHING_RUNNING


def test_a_newer_execution_is_not_touched(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(3, original)
    assert kit.tear_down(2).outcome is Teardown.NEWER
    assert kit.tear_down(3, "another").outcome is Teardown.NEWER
    assert kit.machine.generations_running(ID) == [3]
    assert kit.must().state is NodeState.RUNNING


def test_no_row_answers_with_what_is_remembered(kit: Kit) -> None:
    original = kit.evicted()
    found = kit.tear_down(1)
    assert found.outcome is Teardown.GONE
    assert {one.generation: one.artifact_id for one in found.ended} == {1: original.id}
    assert found.floor == 1


def test_what_was_torn_down_never_starts_here_even_if_it_was_never_known(kit: Kit) -> None:
    found = kit.tear_down(4)
    assert (found.outcome, found.floor) == (Teardown.GONE, 4)
    kit.crash()
    with failing("RetiredGeneration", Code.FENCED, "generation 4 was retired on this node"):
        kit.activate(4)
    assert kit.row() is None
    kit.activate(5)


def test_an_activation_is_cancelled_and_rolls_back(kit: Kit) -> None:
    original = kit.suspended()
    starting = activate.steps(kit.node, kit.activation(2, original))
    while next(starting) is not Point.ACTIVATE_PREPARED:
        pass
    assert kit.tear_down(2).outcome is Teardown.PENDING
    with failing("RolledBackAttempt", Code.FENCED, "torn down"):
        while True:
            next(starting)
    assert "start" not in [call for call, _, generation, _ in kit.machine.log if generation == 2]
    found = kit.tear_down(2)
    assert (found.outcome, found.artifact) == (Teardown.ROLLED_BACK, original)
    assert (kit.artifacts(), kit.jobs(), kit.machine.trees) == ([original.id], 1, {})


def test_an_activation_that_is_cancelled_at_its_commit_stops_what_it_started(kit: Kit) -> None:
    starting = activate.steps(kit.node, kit.activation(2))
    while next(starting) is not Point.ACTIVATE_STARTED:
        pass
    assert kit.machine.generations_running(ID) == [2]
    assert kit.tear_down(2).outcome is Teardown.PENDING
    with failing("RolledBackAttempt", Code.FENCED):
        while True:
            next(starting)
    assert kit.machine.running == set()


def test_a_newer_activation_in_flight_is_newer(kit: Kit) -> None:
    original = kit.suspended()
    starting = activate.steps(kit.node, kit.activation(3, original))
    while next(starting) is not Point.ACTIVATE_CLAIMED:
        pass
    assert kit.tear_down(2).outcome is Teardown.NEWER
    with pytest.raises(StopIteration):
        while True:
            next(starting)
    assert kit.machine.generations_running(ID) == [3]


def test_an_abandoned_activation_is_rolled_back_by_its_teardown(kit: Kit) -> None:
    original = kit.suspended()
    kit.machine.fail("start", after=True)
    kit.machine.fail("discard")
    with failing(None, Code.UNKNOWN_OUTCOME):
        kit.activate(2, original)
    found = kit.tear_down(2)
    assert (found.outcome, found.artifact) == (Teardown.ROLLED_BACK, original)
    assert kit.machine.running == set()


def test_it_is_pending_while_the_same_execution_is_being_suspended(kit: Kit) -> None:
    kit.activate(1)
    first = teardown.steps(kit.node, TearDown(**kit.evidence(1)))
    while next(first) is not Point.SUSPEND_CAPTURED:
        pass
    assert kit.tear_down(1).outcome is Teardown.PENDING
    found = answer(first)
    assert kit.tear_down(1).artifact == found.artifact
    assert kit.jobs() == 1


def test_a_dead_execution_is_nothing_running(kit: Kit) -> None:
    kit.machine.survives = frozenset()
    kit.activate(1)
    kit.machine.die(ID, 1)
    found = kit.tear_down(1)
    assert (found.outcome, found.artifact) == (Teardown.NOTHING_RUNNING, None)
    assert kit.must().state is NodeState.STOPPED
    assert kit.endings() == {1: ("stopped", None)}


def test_what_cannot_be_saved_runs_on_and_is_retired_all_the_same(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.fail("capture")
    with failing("SuspendFailed", Code.INTERNAL):
        kit.tear_down(1)
    assert kit.must().state is NodeState.RUNNING
    assert (kit.fence().retired, kit.machine.frozen) == (1, set())
    assert kit.tear_down(1).outcome is Teardown.SUSPENDED
