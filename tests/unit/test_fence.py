"""Admission, teardown, deletion and inventory as tables: reasons, artifacts and floors (spec: generations, §3–§8)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from flux.core import fence
from flux.core.errors import Code
from flux.core.fence import (
    FINAL,
    STATUS,
    Admitted,
    AlreadyRunning,
    Ended,
    EndedAs,
    Fact,
    Fence,
    InProgress,
    NodeRow,
    Reason,
    Reconcile,
    Refusal,
    Teardown,
)
from flux.core.lifecycle import AT_REST, DORMANT, IN_FLIGHT, NodeState
from flux.core.receipts import DeleteReceipt, RollbackReceipt
from flux.core.route import GENERATION_MAX, Execution, Route

S, T = NodeState, Teardown
OWN = Route(generation=2, attempt_id="a2", pod_uid="p2")
BUSY = (S.SUSPENDING, S.STOPPING, S.CAPTURING, S.DELETING)


def row(state: NodeState, route: Route | None = None, **more: object) -> NodeRow:
    found = NodeRow(sandbox_id="s1", state=state, version=7)
    if route is not None:
        found = msgspec.structs.replace(
            found, generation=route.generation, attempt_id=route.attempt_id, pod_uid=route.pod_uid
        )
    return msgspec.structs.replace(found, **more)


def older(state: NodeState, generation: int = 1, **more: object) -> NodeRow:
    return row(state, Route(generation=generation, attempt_id="a1", pod_uid="p1"), **more)


def claimed(route: Route = OWN, **more: object) -> Fence:
    values: dict[str, object] = {
        "claimed": route.generation, "claimed_attempt": route.attempt_id, "claimed_pod_uid": route.pod_uid,
        "claimed_digest": "digest",
    }  # fmt: skip
    return Fence(**(values | more))  # type: ignore[arg-type]


def rollback(state: NodeState = S.SUSPENDED, attempt: str = "a2", generation: int = 2) -> RollbackReceipt:
    return RollbackReceipt(
        generation=generation, attempt_id=attempt, pod_uid="p2", restored_state=state,
        artifact_id="x" if state is S.SUSPENDED else None, reason="no space", at=1.0,
    )  # fmt: skip


def admit(
    held: NodeRow | None,
    known: Fence,
    receipt: RollbackReceipt | None = None,
    asked: Route = OWN,
    *,
    cold: bool = False,
) -> fence.Admission:
    return fence.admit(held, known, receipt, asked, request_digest="digest", cold=cold)


def reason_of(answer: fence.Admission) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


# Admission


@pytest.mark.parametrize("state", [None, *sorted(DORMANT)])
def test_a_new_generation_is_admitted_from_any_state_at_rest(state: NodeState | None) -> None:
    held = None if state is None else older(state)
    known = claimed(Route(generation=1, attempt_id="a1", pod_uid="p1"))
    assert admit(held, known) == Admitted(state)
    assert admit(held, Fence()) == Admitted(state)


def test_the_attempt_that_holds_the_row_gets_its_own_answer() -> None:
    assert admit(row(S.RUNNING, OWN), claimed()) == AlreadyRunning()
    assert admit(row(S.ACTIVATING, OWN), claimed()) == InProgress()
    for state in BUSY:
        assert reason_of(admit(row(state, OWN), claimed())) is Reason.ROW_BUSY


def test_its_own_answer_comes_before_every_fence() -> None:
    """A success is told again although its generation is retired by now: the teardown is about to end it (§5.1)."""
    assert admit(row(S.RUNNING, OWN), claimed(retired=9)) == AlreadyRunning()
    assert reason_of(admit(row(S.SUSPENDING, OWN), claimed(retired=9))) is Reason.ROW_BUSY


def test_an_attempt_that_is_over_is_over_also_for_itself() -> None:
    for state in DORMANT:
        assert reason_of(admit(row(state, OWN), claimed())) is Reason.ATTEMPT_ENDED


@pytest.mark.parametrize("state", sorted(DORMANT))
def test_a_rolled_back_attempt_is_named_as_such(state: NodeState) -> None:
    answer = admit(row(state), claimed(retired=2), rollback(state))
    assert answer == Refusal(reason=Reason.ROLLED_BACK_ATTEMPT, message="attempt a2 was rolled back: no space")


def test_a_receipt_that_is_not_current_explains_nothing_but_the_fence_still_refuses() -> None:
    assert reason_of(admit(older(S.SUSPENDED), claimed(), rollback(S.STOPPED))) is Reason.ATTEMPT_ENDED
    assert reason_of(admit(older(S.SUSPENDED), claimed(retired=2), rollback(S.STOPPED))) is Reason.RETIRED_GENERATION


def test_a_receipt_of_another_attempt_explains_nothing() -> None:
    assert reason_of(admit(older(S.SUSPENDED), claimed(), rollback(attempt="a9"))) is Reason.ATTEMPT_ENDED


@pytest.mark.parametrize("held", [None, older(S.SUSPENDED), older(S.RUNNING), older(S.ACTIVATING)], ids=str)
@pytest.mark.parametrize(("retired", "refused"), [(1, False), (2, True), (3, True)])
def test_a_retired_generation_never_starts(held: NodeRow | None, retired: int, refused: bool) -> None:
    answer = admit(held, Fence(retired=retired))
    if refused:
        assert answer == Refusal(reason=Reason.RETIRED_GENERATION, message="generation 2 was retired on this node")
    else:
        assert not isinstance(answer, Refusal) or answer.reason in (Reason.PREDECESSOR_RUNNING, Reason.ROW_BUSY)


@pytest.mark.parametrize("held", [None, older(S.SUSPENDED), older(S.RUNNING)], ids=str)
def test_a_generation_below_the_claimed_one_is_stale(held: NodeRow | None) -> None:
    third = Route(generation=3, attempt_id="a3", pod_uid="p3")
    answer = admit(held, claimed(third))
    assert answer == Refusal(
        reason=Reason.STALE_GENERATION, message="generation 2 is older than 3, which was claimed on this node"
    )


@pytest.mark.parametrize("attempt_id", ["a2", "a9"])
@pytest.mark.parametrize("pod_uid", ["p2", "p9"])
@pytest.mark.parametrize("state", [None, *sorted(AT_REST)])
def test_a_claimed_generation_belongs_to_one_attempt(state: NodeState | None, attempt_id: str, pod_uid: str) -> None:
    asked = Route(generation=2, attempt_id=attempt_id, pod_uid=pod_uid)
    held = None if state is None else older(state)
    answer = admit(held, claimed(), asked=asked)
    if asked != OWN:
        assert answer == Refusal(reason=Reason.ROUTE_HELD, message="generation 2 was claimed by attempt a2")
    elif state is S.RUNNING:
        assert reason_of(answer) is Reason.PREDECESSOR_RUNNING
    else:
        assert answer == Refusal(
            reason=Reason.ATTEMPT_ENDED, message="attempt a2 of generation 2 has ended on this node"
        )


def test_a_running_predecessor_is_in_the_way() -> None:
    assert admit(older(S.RUNNING), Fence()) == Refusal(
        reason=Reason.PREDECESSOR_RUNNING, message="generation 1 is still running; end it before generation 2 starts"
    )


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_a_row_in_flight_is_busy(state: NodeState) -> None:
    answer = admit(older(state), Fence())
    assert answer == Refusal(
        reason=Reason.ROW_BUSY, message=f"the sandbox is {state.value} right now; ask the same again"
    )


def test_an_attempt_id_belongs_to_one_request() -> None:
    for held in (None, row(S.RUNNING, OWN), older(S.SUSPENDED)):
        answer = fence.admit(held, claimed(), None, OWN, request_digest="other", cold=False)
        assert answer == Refusal(
            reason=Reason.ATTEMPT_REUSED,
            message="attempt a2 was made with another request; a new request needs a new attempt",
        )


def test_what_is_saved_is_never_started_cold() -> None:
    saved = older(S.SUSPENDED, artifact_id="x")
    assert admit(saved, Fence(), cold=True) == Refusal(
        reason=Reason.COLD_START_OF_SAVED,
        message="the sandbox rests on artifact x; name the artifact to start from",
    )
    assert admit(saved, Fence(), cold=False) == Admitted(S.SUSPENDED)
    assert admit(older(S.CREATED), Fence(), cold=True) == Admitted(S.CREATED)


# Commit and guarded calls


def test_only_the_claim_as_it_was_may_become_running() -> None:
    held = row(S.ACTIVATING, OWN)
    assert fence.may_commit(held, claimed(), OWN, 7)
    assert fence.may_commit(held, claimed(retired=1), OWN, 7)
    assert not fence.may_commit(held, claimed(retired=2), OWN, 7)
    assert not fence.may_commit(held, claimed(), OWN, 8)
    assert not fence.may_commit(None, claimed(), OWN, 7)
    assert not fence.may_commit(row(S.ACTIVATING, msgspec.structs.replace(OWN, pod_uid="p9")), claimed(), OWN, 7)
    for state in set(S) - {S.ACTIVATING}:
        assert not fence.may_commit(row(state, OWN), claimed(), OWN, 7)


def test_calls_are_for_the_execution_that_holds_the_row() -> None:
    assert fence.guard(row(S.RUNNING, OWN), Execution(generation=2, pod_uid="p2")) is None
    for asked in (Execution(generation=1, pod_uid="p2"), Execution(generation=2, pod_uid="p1")):
        refusal = fence.guard(row(S.RUNNING, OWN), asked)
        assert refusal is not None and refusal.reason is Reason.STALE_GENERATION
        assert refusal.message == (
            f"generation {asked.generation} (pod {asked.pod_uid}) is not the one that holds the sandbox here; "
            "that is generation 2"
        )
    missing = fence.guard(None, Execution(generation=1, pod_uid="p"))
    assert missing == Refusal(reason=Reason.UNKNOWN_SANDBOX, message="there is no such sandbox on this node")


# Teardown, row by row of §7

ASKED = Execution(generation=2, pod_uid="p2")
TEARDOWNS: list[tuple[NodeRow | None, RollbackReceipt | None, Teardown]] = [
    (row(S.RUNNING, OWN), None, T.SUSPEND),
    (row(S.SUSPENDED, OWN), None, T.SUSPENDED),
    (row(S.SUSPENDED, OWN), rollback(generation=3, attempt="a3"), T.SUSPENDED),
    # a rollback receipt for exactly this generation, and an older pair or no route
    (older(S.SUSPENDED), rollback(), T.ROLLED_BACK),
    (row(S.SUSPENDED), rollback(), T.ROLLED_BACK),
    (older(S.SUSPENDED), rollback(generation=3), T.NOTHING_RUNNING),
    (older(S.SUSPENDED), rollback(generation=1), T.NOTHING_RUNNING),
    (older(S.SUSPENDED), None, T.NOTHING_RUNNING),
    (older(S.SUSPENDED, pod_uid=None), rollback(), T.NOTHING_RUNNING),
    (older(S.SUSPENDED, generation=None), rollback(), T.NOTHING_RUNNING),
    (older(S.SUSPENDED), rollback(S.STOPPED), T.NOTHING_RUNNING),
    # created or stopped: a receipt for this or a later one, and no route at all
    (row(S.CREATED), rollback(S.CREATED), T.ROLLED_BACK),
    (row(S.STOPPED), rollback(S.STOPPED), T.ROLLED_BACK),
    (row(S.CREATED), rollback(S.CREATED, generation=3), T.ROLLED_BACK),
    (row(S.CREATED), rollback(S.CREATED, generation=1), T.NOTHING_RUNNING),
    (row(S.CREATED, pod_uid="p1"), rollback(S.CREATED), T.NOTHING_RUNNING),
    (older(S.STOPPED), rollback(S.STOPPED), T.NOTHING_RUNNING),
    (row(S.CREATED), None, T.NOTHING_RUNNING),
    # a newer execution, or another pod, is not touched
    *[(older(state, 3), None, T.NEWER) for state in S if state is not S.GONE],
    *[
        (row(state, Route(generation=2, attempt_id="a2", pod_uid="p9")), None, T.NEWER)
        for state in sorted(AT_REST | IN_FLIGHT)
    ],
    (older(S.SUSPENDED, 3), rollback(), T.NEWER),
    (row(S.SUSPENDED, Route(generation=2, attempt_id="a2", pod_uid="p9")), rollback(), T.NEWER),
    # the row is older than what is asked: nothing of it runs
    *[(older(state), None, T.NOTHING_RUNNING) for state in sorted(AT_REST)],
    (row(S.STOPPED, OWN), None, T.NOTHING_RUNNING),
    # in flight
    (row(S.ACTIVATING, OWN), None, T.CANCEL),
    *[(row(state, OWN), None, T.PENDING) for state in sorted(IN_FLIGHT - {S.ACTIVATING})],
    *[(older(state), None, T.PENDING) for state in sorted(IN_FLIGHT)],
    (None, None, T.GONE),
]


@pytest.mark.parametrize(("held", "receipt", "outcome"), TEARDOWNS, ids=str)
def test_a_teardown_means(held: NodeRow | None, receipt: RollbackReceipt | None, outcome: Teardown) -> None:
    assert fence.tear_down(held, receipt, ASKED) is outcome


# Deletion, eviction, inventory


def test_a_delete_receipt_covers_the_highest_of_all_that_is_known() -> None:
    receipt = DeleteReceipt(sandbox_id="s1", covers_generation=6, reason="evicted", at=1.0)
    parts = (older(S.SUSPENDED, 3), claimed(Route(generation=4, attempt_id="a", pod_uid="p")), rollback(generation=5))
    for with_row, with_fence, with_rollback, with_older in itertools.product([True, False], repeat=4):
        expected = max([1] + [3] * with_row + [4] * with_fence + [5] * with_rollback + [6] * with_older)
        found = fence.covered(
            parts[0] if with_row else None, parts[1] if with_fence else Fence(), parts[2] if with_rollback else None,
            receipt if with_older else None, destroyed=False,
        )  # fmt: skip
        assert found == expected
    assert fence.covered(None, Fence(), None, None, destroyed=True) == GENERATION_MAX
    assert fence.covered(row(S.CREATED), Fence(), None, None, destroyed=False) == 1


def test_a_rollback_counts_for_the_delete_receipt_although_the_row_has_moved_on() -> None:
    assert fence.covered(older(S.DELETING), Fence(), rollback(S.SUSPENDED, generation=8), None, destroyed=False) == 8


EVICTABLE = {"durable": True, "pinned": False, "open_job": False, "idle_since": 100.0}


@pytest.mark.parametrize("state", sorted(AT_REST | IN_FLIGHT))
def test_only_what_is_at_rest_and_runs_nothing_is_evicted(state: NodeState) -> None:
    assert fence.is_evictable(older(state, artifact_id="x"), **EVICTABLE) is (state in DORMANT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "changed", "evictable"),
    [
        ({}, {}, True),
        ({"last_activity": 100.0}, {}, True),
        ({"last_activity": 100.5}, {}, False),
        ({"bound": True}, {}, False),
        ({}, {"pinned": True}, False),
        ({}, {"open_job": True}, False),
        ({}, {"durable": False}, False),
        ({"artifact_id": None}, {"durable": False}, True),
    ],
    ids=str,
)
def test_what_keeps_a_row_from_eviction(held: dict[str, object], changed: dict[str, object], evictable: bool) -> None:
    found = older(S.SUSPENDED, **{"artifact_id": "x", **held})
    assert fence.is_evictable(found, **(EVICTABLE | changed)) is evictable  # type: ignore[arg-type]


INVENTORY: list[tuple[NodeRow, Fact, Reconcile]] = [
    (older(S.SUSPENDED, artifact_id="x"), Fact(sandbox_id="s1", generation=9, destroyed=True), Reconcile.DESTROY),
    (older(S.RUNNING), Fact(sandbox_id="s1", generation=1, destroyed=True), Reconcile.DESTROY),
    (older(S.RUNNING), Fact(sandbox_id="s1", generation=2), Reconcile.END_STALE),
    (older(S.RUNNING), Fact(sandbox_id="s1", generation=1), Reconcile.KEEP),
    (older(S.RUNNING, 3), Fact(sandbox_id="s1", generation=2), Reconcile.KEEP),
    (older(S.SUSPENDED, artifact_id="x"), Fact(sandbox_id="s1", generation=2, artifact_id="x"), Reconcile.KEEP),
    (older(S.SUSPENDED, artifact_id="x"), Fact(sandbox_id="s1", generation=2, artifact_id="y"), Reconcile.DELETE_STALE),
    (older(S.SUSPENDED, artifact_id="x"), Fact(sandbox_id="s1", generation=1, artifact_id="y"), Reconcile.KEEP),
    (row(S.CREATED), Fact(sandbox_id="s1", generation=1), Reconcile.DELETE_STALE),
    (row(S.CREATED), Fact(sandbox_id="s1", generation=0), Reconcile.KEEP),
    (older(S.STOPPED), Fact(sandbox_id="s1", generation=2), Reconcile.DELETE_STALE),
    (older(S.SUSPENDED, bound=True), Fact(sandbox_id="s1", generation=2), Reconcile.KEEP),
    (older(S.SUSPENDED, bound=True), Fact(sandbox_id="s1", generation=2, destroyed=True), Reconcile.DESTROY),
    *[(older(state), Fact(sandbox_id="s1", generation=2), Reconcile.KEEP) for state in sorted(IN_FLIGHT)],
]


@pytest.mark.parametrize(("held", "fact", "outcome"), INVENTORY, ids=str)
def test_an_inventory_fact_means(held: NodeRow, fact: Fact, outcome: Reconcile) -> None:
    assert fence.reconcile(held, fact) is outcome


# What a refusal carries

EXPECTED = {
    Reason.ROLLED_BACK_ATTEMPT: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.RETIRED_GENERATION: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.STALE_GENERATION: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.ROUTE_HELD: (Code.FENCED, "ABORTED"),
    Reason.ATTEMPT_ENDED: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.PREDECESSOR_RUNNING: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.ROW_BUSY: (Code.UNAVAILABLE, "UNAVAILABLE"),
    Reason.ATTEMPT_REUSED: (Code.INVALID, "INVALID_ARGUMENT"),
    Reason.COLD_START_OF_SAVED: (Code.INVALID, "INVALID_ARGUMENT"),
    Reason.OTHER_STORE: (Code.FENCED, "FAILED_PRECONDITION"),
    Reason.UNKNOWN_SANDBOX: (Code.NOT_FOUND, "NOT_FOUND"),
    Reason.NOT_EVICTABLE: (Code.ILLEGAL_STATE, "FAILED_PRECONDITION"),
    Reason.NOT_RUNNING: (Code.ILLEGAL_STATE, "FAILED_PRECONDITION"),
}


def test_every_reason_has_its_status() -> None:
    assert dict(STATUS) == EXPECTED
    assert {reason.value for reason in FINAL} == {
        "RolledBackAttempt", "RetiredGeneration", "StaleGeneration", "AttemptEnded", "RouteHeld",
    }  # fmt: skip


@pytest.mark.parametrize("reason", list(Reason))
def test_a_refusal_carries_what_the_control_plane_needs(reason: Reason) -> None:
    ended = Ended(generation=2, ended_as=EndedAs.SUSPENDED, artifact_id="x", artifact_digest="d")
    known = claimed(retired=5, ended=(ended,))
    error = fence.refused(
        Refusal(reason=reason, message="it is so"), "s1", "start", node_store_id="n1", route=OWN, fence=known
    )
    assert error.message == "cannot start sandbox s1: it is so"
    assert error.code is EXPECTED[reason][0]
    assert error.details == {
        "reason": reason.value,
        "node_store_id": "n1",
        "floor": 5,
        "ended": [
            {"generation": 2, "ended_as": "suspended", "artifact_id": "x", "artifact_digest": "d", "durable": False}
        ],
        "grpc_status": EXPECTED[reason][1],
        "generation": 2,
        "attempt_id": "a2",
    }


def test_details_say_only_what_was_asked() -> None:
    refusal = Refusal(reason=Reason.ROW_BUSY, message="")
    found = fence.details(refusal, node_store_id="n", route=Execution(generation=3, pod_uid="p"), fence=Fence())
    assert found["generation"] == 3 and "attempt_id" not in found
    bare = fence.details(refusal, node_store_id="n", route=None, fence=Fence())
    assert "generation" not in bare and bare["floor"] == 0


@pytest.mark.parametrize(("at", "retired", "floor"), [(0, 0, 0), (3, 1, 3), (1, 3, 3)])
def test_the_floor_is_above_everything_known(at: int, retired: int, floor: int) -> None:
    assert Fence(claimed=at, retired=retired).floor == floor


def test_an_ending_is_found_by_its_generation() -> None:
    endings = tuple(Ended(generation=number, ended_as=EndedAs.STOPPED) for number in (1, 2))
    assert Fence(ended=endings).ending_of(2) == endings[1]
    assert Fence(ended=endings).ending_of(3) is None
