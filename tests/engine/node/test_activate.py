"""Create and Start: every refusal with its reason, every failure with everything as it was (§5)."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.node import ArtifactReference
from flux.core.receipts import read_rollback
from flux.core.route import Route
from flux.engine.node import activate
from flux.failpoints import Point, armed
from flux.store import sandboxes
from tests.engine.node.kit import ID, Kit, failing


def points(kit: Kit, generation: int, artifact: ArtifactReference | None, *, create: bool) -> list[Point]:
    """Return the points that a refused activation reaches."""
    reached: list[Point] = []
    with armed(reached.append), pytest.raises(FluxError):
        kit.activate(generation, artifact, create=create)
    return reached


def test_a_cold_start_runs_and_its_repetition_gets_the_same_answer(kit: Kit) -> None:
    first = kit.activate(1, create=True)
    assert first.route == Route(generation=1, attempt_id="a1", pod_uid="p1")
    assert first.address == "http://node"
    assert kit.machine.generations_running(ID) == [1]
    assert kit.machine.restored_from(ID, 1) is None
    before = kit.contents()
    assert kit.activate(1) == first
    assert kit.contents() == before
    kit.crash()
    assert kit.activate(1) == first


def test_the_credential_is_kept_as_a_digest_and_ends_with_its_generation(kit: Kit) -> None:
    first = kit.activate(1).credential
    with kit.database.reading() as tx:
        assert first not in str(tx.every("SELECT * FROM sandboxes"))
        assert sandboxes.by_credential(tx, ID, hashlib.sha256(first.encode()).hexdigest()) is not None
    original = kit.suspend(1).artifact
    second = kit.activate(2, original).credential
    assert second != first
    with kit.database.reading() as tx:
        assert sandboxes.by_credential(tx, ID, hashlib.sha256(first.encode()).hexdigest()) is None


def test_a_restore_is_of_exactly_the_named_artifact(kit: Kit) -> None:
    """I6."""
    original = kit.suspended()
    kit.activate(2, original)
    assert kit.machine.restored_from(ID, 2) == original.id
    assert kit.machine.files(ID) == {"file": "original"}
    row = kit.must()
    assert (row.state, row.generation, row.artifact_id, row.restoring) == (NodeState.RUNNING, 2, original.id, None)
    assert (row.prior_state, row.prior_generation, row.prior_pod_uid) == (None, None, None)


def test_a_failed_prepare_leaves_everything_as_it_was(kit: Kit) -> None:
    original = kit.suspended()
    before = kit.must()
    kit.machine.fail("prepare")
    with failing("PrepareFailed", Code.INTERNAL, "everything is as it was before") as caught:
        kit.activate(2, original)
    after = kit.must()
    kept = ("state", "generation", "pod_uid", "artifact_id", "backup", "restoring", "named", "last_activity")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert kit.fence().claimed == 2
    assert kit.endings() == {1: ("suspended", original.id), 2: ("rolled_back", None)}
    details = caught.value.details
    assert (details["node_store_id"], details["generation"], details["attempt_id"], details["floor"]) == (
        kit.manager.store_id, 2, "a2", 2,
    )  # fmt: skip
    assert (details["grpc_status"], details["rolled_back"], details["cause"]) == ("INTERNAL", True, "unavailable")
    assert [one["generation"] for one in details["ended"]] == [1, 2]
    assert kit.machine.trees == {}
    receipt = read_rollback(after.receipt)
    assert receipt is not None
    assert (receipt.generation, receipt.attempt_id, receipt.restored_state, receipt.artifact_id) == (
        2, "a2", NodeState.SUSPENDED, original.id,
    )  # fmt: skip


@pytest.mark.parametrize("create", [True, False], ids=["create", "start"])
def test_a_rolled_back_attempt_never_starts_again(kit: Kit, create: bool) -> None:
    """I3: its repetition is refused before anything happens, and changes nothing (I10)."""
    original = kit.rolled_back()
    before, log = kit.contents(), list(kit.machine.log)
    with failing("RolledBackAttempt", Code.FENCED, "attempt a2 was rolled back") as caught:
        kit.activate(2, original, create=create)
    assert caught.value.details["grpc_status"] == "FAILED_PRECONDITION"
    assert (kit.contents(), kit.machine.log) == (before, log)
    assert points(kit, 2, original, create=create) == []  # not even a transaction was begun


def test_after_eviction_its_generation_is_retired(kit: Kit) -> None:
    original = kit.rolled_back()
    kit.backed_up()
    kit.clock.advance(1000)
    assert kit.manager.evict_idle() == [ID]
    assert kit.row() is None
    with failing("RetiredGeneration", Code.FENCED, "generation 2 was retired on this node"):
        kit.activate(2, original)
    kit.crash()
    with failing("RetiredGeneration", Code.FENCED):
        kit.activate(2, original)
    assert kit.row() is None
    kit.activate(3, original)
    assert kit.machine.restored_from(ID, 3) == original.id


def test_every_refusal_tells_what_ended_here_so_that_a_lost_reply_loses_no_artifact(kit: Kit) -> None:
    """§3: the artifact by id and digest, also after the sandbox has left this node."""
    original = kit.rolled_back()
    told = {"generation": 1, "ended_as": "suspended", "artifact_id": original.id, "artifact_digest": original.digest}
    for durable in (False, True):
        if durable:
            kit.backed_up()
            kit.clock.advance(1000)
            assert kit.manager.evict_idle() == [ID]
        with failing("RetiredGeneration" if durable else "RolledBackAttempt", Code.FENCED) as caught:
            kit.activate(2, original)
        first, second = caught.value.details["ended"]
        assert first == told | {"durable": durable}
        assert (second["generation"], second["ended_as"], second["artifact_id"]) == (2, "rolled_back", None)
        assert caught.value.details["floor"] == 2


def test_a_new_attempt_for_a_claimed_generation_is_refused(kit: Kit) -> None:
    original = kit.rolled_back()
    other = Route(generation=2, attempt_id="b2", pod_uid="p2")
    with failing("RouteHeld", Code.FENCED) as caught:
        kit.activate(2, original, route=other)
    assert caught.value.details["grpc_status"] == "ABORTED"


def test_an_older_generation_is_stale_and_a_malformed_receipt_ends_the_attempt(kit: Kit) -> None:
    original = kit.rolled_back()
    kit.machine.fail("start")
    with failing("StartFailed", Code.INTERNAL):
        kit.activate(3, original)
    with failing("StaleGeneration", Code.FENCED):
        kit.activate(2, original)
    kit.set_receipt("{broken")
    with failing("AttemptEnded", Code.FENCED):
        kit.activate(3, original)


def test_a_running_predecessor_and_a_reused_attempt_and_a_cold_start_of_something_saved(kit: Kit) -> None:
    kit.activate(1)
    with failing("PredecessorRunning", Code.FENCED):
        kit.activate(2)
    with failing("AttemptReused", Code.INVALID):
        kit.activate(1, sandbox=kit.sandbox(memory_mib=5))
    kit.suspend(1)
    with failing("ColdStartOfSaved", Code.INVALID):
        kit.activate(2)
    assert kit.fence().claimed == 1


def test_another_store_is_meant(kit: Kit) -> None:
    with failing("OtherStore", Code.FENCED) as caught:
        kit.activate(1, node_store_id="another")
    assert caught.value.details["node_store_id"] == kit.manager.store_id
    assert kit.row() is None


@pytest.mark.parametrize(
    ("call", "error", "reason", "code", "status"),
    [
        ("admit", FluxError(Code.EXHAUSTED, "full"), "AdmissionFailed", Code.EXHAUSTED, "RESOURCE_EXHAUSTED"),
        ("prepare", FluxError(Code.EXHAUSTED, "full"), "PrepareFailed", Code.EXHAUSTED, "RESOURCE_EXHAUSTED"),
        ("prepare", FluxError(Code.INVALID, "no"), "PrepareFailed", Code.INVALID, "INVALID_ARGUMENT"),
        ("prepare", OSError(5, "I/O error"), "PrepareFailed", Code.INTERNAL, "INTERNAL"),
        ("start", FluxError(Code.UNAVAILABLE, "dead"), "StartFailed", Code.INTERNAL, "INTERNAL"),
    ],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_failures_are_of_their_own_class_and_undone(
    kit: Kit, call: str, error: Exception, reason: str, code: Code, status: str, after: bool
) -> None:
    original = kit.suspended()
    kit.machine.fail(call, error, after=after)
    with failing(reason, code) as caught:
        kit.activate(2, original)
    assert caught.value.details["grpc_status"] == status
    assert (kit.must().state, kit.must().artifact_id, kit.must().generation) == (NodeState.SUSPENDED, original.id, 1)
    assert (kit.machine.trees, kit.machine.running) == ({}, set())
    kit.activate(3, original)
    assert kit.machine.files(ID) == {"file": "original"}


def test_a_missing_and_a_damaged_artifact_are_told_apart_and_never_replaced(kit: Kit) -> None:
    original = kit.suspended()
    absent = ArtifactReference(id="f" * 32, digest="f" * 64, durable=True)
    with failing("ArtifactMissing", Code.NOT_FOUND) as caught:
        kit.activate(2, absent)
    assert caught.value.details["grpc_status"] == "NOT_FOUND"
    kit.machine.flip_a_byte(original.id)
    with failing("DataLoss", Code.INTERNAL) as caught:
        kit.activate(3, original)
    assert caught.value.details["grpc_status"] == "DATA_LOSS"
    assert kit.must().artifact_id == original.id
    assert kit.machine.running == set()


def test_a_failed_first_start_leaves_a_sandbox_that_never_ran(kit: Kit) -> None:
    kit.machine.fail("start")
    with failing("StartFailed", Code.INTERNAL):
        kit.activate(1)
    row = kit.must()
    assert (row.state, row.generation, row.pod_uid, row.artifact_id) == (NodeState.CREATED, None, None, None)
    with failing("RolledBackAttempt", Code.FENCED):
        kit.activate(1)
    kit.activate(2)
    assert kit.must().state is NodeState.RUNNING


def test_an_evicted_row_is_rebuilt_and_a_rollback_keeps_its_artifact(kit: Kit) -> None:
    original = kit.evicted()
    kit.machine.saved.clear()
    kit.machine.fail("start")
    with failing("StartFailed", Code.INTERNAL):
        kit.activate(2, original)
    row = kit.must()
    assert (row.state, row.generation, row.pod_uid, row.artifact_id, row.backup) == (
        NodeState.SUSPENDED, None, None, original.id, True,
    )  # fmt: skip
    kit.activate(3, original)
    assert kit.machine.files(ID) == {"file": "original"}
    assert kit.artifacts() == [original.id]


def test_a_rebuilt_row_fits_no_witness_of_the_deleted_one(kit: Kit) -> None:
    original = kit.suspended()
    kit.backed_up()
    before = kit.must().version
    kit.clock.advance(1000)
    kit.evict(1)
    kit.activate(2, original)
    assert kit.must().version > before


def test_a_claim_between_pre_check_and_claim_is_mapped_by_the_same_function(kit: Kit) -> None:
    original = kit.suspended()
    late = activate.steps(kit.node, kit.activation(2, original))
    assert next(late) is Point.ACTIVATE_CHECKED
    kit.activate(3, original)
    before = kit.contents()
    with failing("StaleGeneration", Code.FENCED) as caught:
        next(late)
    assert caught.value.details["floor"] == 3
    assert kit.contents() == before


@pytest.mark.parametrize("create", [True, False], ids=["create", "start"])
def test_a_rival_attempt_between_pre_check_and_claim_is_refused_as_such(kit: Kit, create: bool) -> None:
    late = activate.steps(kit.node, kit.activation(1, create=create))
    assert next(late) is Point.ACTIVATE_CHECKED
    kit.activate(1, route=Route(generation=1, attempt_id="b1", pod_uid="q1"))
    with failing("RouteHeld", Code.FENCED):
        next(late)


def test_a_second_start_of_the_same_attempt_joins_the_first(kit: Kit) -> None:
    first = activate.steps(kit.node, kit.activation(1))
    second = activate.steps(kit.node, kit.activation(1))
    while next(first) is not Point.ACTIVATE_PREPARED:
        pass
    assert [next(second) for _ in range(3)] == [Point.ACTIVATE_CHECKED, Point.ACTIVATE_JOINED, Point.ACTIVATE_CHECKED]
    with pytest.raises(StopIteration) as done:
        while True:
            next(first)
    with pytest.raises(StopIteration) as joined:
        while True:
            assert next(second) in (Point.ACTIVATE_JOINED, Point.ACTIVATE_CHECKED)
    assert joined.value.value == done.value.value
    assert [call for call, *_ in kit.machine.log].count("start") == 1


def test_a_joined_attempt_that_fails_is_refused_as_rolled_back(kit: Kit) -> None:
    first = activate.steps(kit.node, kit.activation(1))
    second = activate.steps(kit.node, kit.activation(1))
    while next(first) is not Point.ACTIVATE_PREPARE:
        pass
    assert [next(second), next(second)] == [Point.ACTIVATE_CHECKED, Point.ACTIVATE_JOINED]
    first.throw(OSError(28, "no space"))
    with failing("PrepareFailed", Code.INTERNAL):
        while True:
            next(first)
    with failing("RolledBackAttempt", Code.FENCED):
        while True:
            next(second)


def test_a_busy_row_is_asked_again(kit: Kit) -> None:
    first = activate.steps(kit.node, kit.activation(1))
    while next(first) is not Point.ACTIVATE_CLAIMED:
        pass
    with failing("RowBusy", Code.UNAVAILABLE):
        kit.activate(2)


def test_a_rollback_that_cannot_be_done_is_of_unknown_outcome_and_mended_later(kit: Kit) -> None:
    """I9: neither success nor refusal; the same attempt asked again is the one that puts it right."""
    original = kit.suspended()
    kit.machine.fail("prepare", after=True)
    kit.machine.fail("discard")
    with failing(None, Code.UNKNOWN_OUTCOME) as caught:
        kit.activate(2, original)
    assert caught.value.details == {}
    assert kit.must().state is NodeState.ACTIVATING
    with failing("RolledBackAttempt", Code.FENCED):
        kit.activate(2, original)
    assert (kit.must().state, kit.must().generation, kit.machine.trees) == (NodeState.SUSPENDED, 1, {})


def test_a_commit_that_happened_although_it_was_reported_to_fail_counts(kit: Kit) -> None:
    kit.activate(1)
    steps = activate.steps(kit.node, kit.activation(2))
    with failing("PredecessorRunning", Code.FENCED):
        next(steps)
    with armed(_fail_at(Point.ACTIVATE_COMMITTED)), pytest.raises(FluxError) as caught:
        kit.activate(5, sandbox_id="s2")
    assert caught.value.code is Code.UNKNOWN_OUTCOME
    assert kit.must("s2").state is NodeState.RUNNING
    assert kit.activate(5, sandbox_id="s2").route.generation == 5


def _fail_at(point: Point):  # type: ignore[no-untyped-def]
    def fail(reached: Point) -> None:
        if reached is point:
            raise OSError(5, "I/O error")

    return fail


def test_a_manager_whose_store_was_opened_by_another_one_is_refused(kit: Kit) -> None:
    old = kit.manager
    kit.manager = kit._open()
    with failing("OtherManager", Code.FENCED):
        old.activate(kit.activation(1))
    assert kit.row() is None
    kit.activate(1)


def test_the_route_is_restored_as_a_pair_or_not_at_all(kit: Kit) -> None:
    original = kit.rolled_back()
    assert (kit.must().generation, kit.must().pod_uid) == (1, "p1")
    kit.machine.fail("admit")
    with failing("AdmissionFailed", Code.INTERNAL):
        kit.activate(4, original)
    row = kit.must()
    assert (row.generation, row.pod_uid, row.attempt_id) == (1, "p1", None)
    assert msgspec.structs.replace(row, version=0).prior_generation is None
