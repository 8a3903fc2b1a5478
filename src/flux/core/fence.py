"""What a node refuses, and what a teardown means: pure decisions over a row and its fence (spec: generations, §3–§8).

The fence outlives the row and is never collected. It alone refuses an activation; receipts explain the refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import DORMANT, IN_FLIGHT, NodeState
from flux.core.receipts import DeleteReceipt, RollbackReceipt, is_current
from flux.core.route import GENERATION_MAX, Execution, Route


class EndedAs(StrEnum):
    """How a generation ended."""

    SUSPENDED = "suspended"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"
    SUPERSEDED = "superseded"
    DESTROYED = "destroyed"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that is over here, and the artifact that it produced, by id and digest, if any.

    ``durable``: the object store has all of that artifact.
    """

    generation: int
    ended_as: EndedAs
    artifact_id: str | None = None
    artifact_digest: str | None = None
    durable: bool = False


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox's fence on one node.

    ``claimed``: the highest generation ever claimed here, with the attempt, pod UID and request digest that claimed it;
    a rollback does not lower it. ``retired``: the highest generation that may never start here again. ``ended``: per
    ended generation that the control plane has not confirmed yet.
    """

    claimed: int = 0
    claimed_attempt: str | None = None
    claimed_pod_uid: str | None = None
    claimed_digest: str | None = None
    retired: int = 0
    ended: tuple[Ended, ...] = ()

    @property
    def floor(self) -> int:
        """The generation above which minting is safe for this node."""
        return max(self.claimed, self.retired)

    def ending_of(self, generation: int) -> Ended | None:
        """Return how a generation ended here, if it is still remembered."""
        return next((ended for ended in self.ended if ended.generation == generation), None)


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox's row on a node, as decisions see it.

    ``version`` is bumped by every write: the witness that guarded updates compare. ``generation``, ``attempt_id`` and
    ``pod_uid`` are the route, of the last execution where none runs; all ``None`` if there never was one.
    ``prior_state``, ``prior_generation`` and ``prior_pod_uid`` are what an activation came from. ``artifact_id``: what
    the sandbox rests on, the original artifact. ``restoring``: the artifact pinned by an activation. ``named``: the
    artifact of a suspension that is driven on. ``backup``: whether the control plane was told that ``artifact_id`` is
    durable. ``receipt``: its stored form, for ``core.receipts``. ``intent``: the recorded reason of a deletion.
    """

    sandbox_id: str
    state: NodeState
    version: int
    generation: int | None = None
    attempt_id: str | None = None
    pod_uid: str | None = None
    prior_state: NodeState | None = None
    prior_generation: int | None = None
    prior_pod_uid: str | None = None
    artifact_id: str | None = None
    restoring: str | None = None
    named: str | None = None
    backup: bool = False
    last_activity: float = 0.0
    receipt: str | None = None
    intent: str | None = None
    bound: bool = False

    def is_execution(self, execution: Execution) -> bool:
        """Tell whether the route is exactly this execution."""
        return (self.generation, self.pod_uid) == (execution.generation, execution.pod_uid)

    def holds(self, route: Route) -> bool:
        """Tell whether the route is exactly this attempt."""
        return (self.generation, self.attempt_id, self.pod_uid) == (route.generation, route.attempt_id, route.pod_uid)


class Reason(StrEnum):
    """Why a node refuses a call. Machine-readable: ``details["reason"]``."""

    ROLLED_BACK_ATTEMPT = "RolledBackAttempt"
    RETIRED_GENERATION = "RetiredGeneration"
    STALE_GENERATION = "StaleGeneration"
    ROUTE_HELD = "RouteHeld"
    ATTEMPT_ENDED = "AttemptEnded"
    PREDECESSOR_RUNNING = "PredecessorRunning"
    ROW_BUSY = "RowBusy"
    ATTEMPT_REUSED = "AttemptReused"
    COLD_START_OF_SAVED = "ColdStartOfSaved"
    OTHER_STORE = "OtherStore"
    UNKNOWN_SANDBOX = "UnknownSandbox"
    NOT_EVICTABLE = "NotEvictable"
    NOT_RUNNING = "NotRunning"


#: Final for a generation: the control plane accepts what ``ended`` reports and mints the next one at once (§9.2).
FINAL = frozenset(
    {
        Reason.ROLLED_BACK_ATTEMPT,
        Reason.RETIRED_GENERATION,
        Reason.STALE_GENERATION,
        Reason.ATTEMPT_ENDED,
        Reason.ROUTE_HELD,
    }
)

#: Each reason's code and the canonical gRPC status it travels as. Nothing between node and API rewrites them (§5.2).
STATUS: Mapping[Reason, tuple[Code, str]] = MappingProxyType(
    {
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
)


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A call is refused and changes nothing (I10)."""

    reason: Reason
    message: str


class Admitted(msgspec.Struct, frozen=True):
    """The activation may claim its generation. ``came_from``: ``None`` where there is no row yet."""

    came_from: NodeState | None


class AlreadyRunning(msgspec.Struct, frozen=True):
    """This very attempt succeeded before: the same answer again."""


class InProgress(msgspec.Struct, frozen=True):
    """This very attempt is being worked on: join it."""


Admission: TypeAlias = Admitted | AlreadyRunning | InProgress | Refusal

_BUSY_WITH_OWN = frozenset({NodeState.SUSPENDING, NodeState.STOPPING, NodeState.CAPTURING, NodeState.DELETING})


def admit(
    row: NodeRow | None,
    fence: Fence,
    rollback: RollbackReceipt | None,
    route: Route,
    *,
    request_digest: str,
    cold: bool,
) -> Admission:
    """Decide on an activation; pre-check and claim ask the same, in this order (§5.1, §5.2).

    Args:
        row: the sandbox's row, ``None`` if there is none (never was, evicted, destroyed).
        fence: its fence; the empty one if nothing was ever known.
        rollback: what ``receipts.read_rollback`` makes of the row's receipt.
        route: the route evidence of the request.
        request_digest: of the whole request; the same attempt id with another one is refused.
        cold: no artifact is named.
    """
    reused = _reused(fence, route, request_digest)
    if reused is not None:
        return reused
    if row is not None and row.holds(route):  # §5.1: this attempt holds the row
        held = _own(row)
        if held is not None:
            return held
    fenced = _fenced(row, fence, rollback, route)
    if fenced is not None:
        return fenced
    if row is None:
        return Admitted(None)
    return _startable(row, route, cold=cold)


def _reused(fence: Fence, route: Route, request_digest: str) -> Refusal | None:
    """§2: the same attempt id with another request is invalid."""
    if fence.claimed_attempt == route.attempt_id and fence.claimed_digest != request_digest:
        return Refusal(
            reason=Reason.ATTEMPT_REUSED,
            message=f"attempt {route.attempt_id} was made with another request; a new request needs a new attempt",
        )
    return None


def _own(row: NodeRow) -> Admission | None:
    if row.state is NodeState.RUNNING:
        return AlreadyRunning()
    if row.state is NodeState.ACTIVATING:
        return InProgress()
    if row.state in _BUSY_WITH_OWN:
        return _busy(row)
    return None


def _fenced(row: NodeRow | None, fence: Fence, rollback: RollbackReceipt | None, route: Route) -> Refusal | None:
    generation = route.generation
    # §5.1: the row's current rollback receipt matches; §4: admission requires it to be current
    if (
        row is not None
        and rollback is not None
        and is_current(rollback, row.state)
        and rollback.attempt_id == route.attempt_id
    ):
        return Refusal(
            reason=Reason.ROLLED_BACK_ATTEMPT,
            message=f"attempt {route.attempt_id} was rolled back: {rollback.reason}",
        )
    if generation <= fence.retired:  # §5.1: retired, also by a row's deletion (I3, I4)
        return Refusal(reason=Reason.RETIRED_GENERATION, message=f"generation {generation} was retired on this node")
    if generation < fence.claimed:  # §5.1, §3: rollback does not lower ``claimed``
        return Refusal(
            reason=Reason.STALE_GENERATION,
            message=f"generation {generation} is older than {fence.claimed}, which was claimed on this node",
        )
    if generation > fence.claimed:
        return None
    if (route.attempt_id, route.pod_uid) != (fence.claimed_attempt, fence.claimed_pod_uid):
        return Refusal(
            reason=Reason.ROUTE_HELD,
            message=f"generation {generation} was claimed by attempt {fence.claimed_attempt}",
        )
    if row is None or row.state in DORMANT:  # §5.1: a malformed receipt ends here
        return Refusal(
            reason=Reason.ATTEMPT_ENDED,
            message=f"attempt {route.attempt_id} of generation {generation} has ended on this node",
        )
    return None


def _startable(row: NodeRow, route: Route, *, cold: bool) -> Admission:
    if row.state is NodeState.RUNNING:  # I1
        return Refusal(
            reason=Reason.PREDECESSOR_RUNNING,
            message=f"generation {row.generation} is still running; end it before generation {route.generation} starts",
        )
    if row.state in IN_FLIGHT:
        return _busy(row)
    if cold and row.artifact_id is not None:  # §5: never an empty sandbox under an id that has something saved
        return Refusal(
            reason=Reason.COLD_START_OF_SAVED,
            message=f"the sandbox rests on artifact {row.artifact_id}; name the artifact to start from",
        )
    return Admitted(row.state)


def _busy(row: NodeRow) -> Refusal:
    return Refusal(reason=Reason.ROW_BUSY, message=f"the sandbox is {row.state.value} right now; ask the same again")


def may_commit(row: NodeRow | None, fence: Fence, route: Route, version: int) -> bool:
    """Tell whether an activation may become ``running``: it holds the row as claimed, and is not retired (§5.4)."""
    return (
        row is not None
        and row.version == version
        and row.state is NodeState.ACTIVATING
        and row.holds(route)
        and route.generation > fence.retired
    )


def guard(row: NodeRow | None, execution: Execution) -> Refusal | None:
    """Refuse a call that is not about the row's own execution: suspend, stop, evict, snapshot, exec, files (§6)."""
    if row is None:
        return Refusal(reason=Reason.UNKNOWN_SANDBOX, message="there is no such sandbox on this node")
    if not row.is_execution(execution):
        return Refusal(
            reason=Reason.STALE_GENERATION,
            message=f"generation {execution.generation} (pod {execution.pod_uid}) is not the one that holds the "
            f"sandbox here; that is generation {row.generation}",
        )
    return None


class Teardown(StrEnum):
    """What a teardown comes to (§7)."""

    SUSPEND = "suspend"
    SUSPENDED = "suspended"
    ROLLED_BACK = "superseded(rolled_back)"
    NEWER = "superseded(newer)"
    NOTHING_RUNNING = "superseded(nothing_running)"
    CANCEL = "cancel"
    PENDING = "pending"
    GONE = "gone"


def tear_down(row: NodeRow | None, rollback: RollbackReceipt | None, execution: Execution) -> Teardown:
    """Decide what the teardown of an execution means; the rows of §7's table, in their order.

    ``retired`` has been raised to the generation already. ``SUSPEND`` and ``CANCEL`` say what to do first.
    """
    if row is None:
        return Teardown.GONE
    if row.state is NodeState.RUNNING and row.is_execution(execution):
        return Teardown.SUSPEND
    if row.state is NodeState.SUSPENDED and row.is_execution(execution):
        return Teardown.SUSPENDED
    if rollback is not None and is_current(rollback, row.state) and _excuses(row, rollback, execution.generation):
        return Teardown.ROLLED_BACK
    if row.generation is not None and _is_newer(row, row.generation, execution):
        return Teardown.NEWER
    if row.state is NodeState.ACTIVATING and row.is_execution(execution):
        return Teardown.CANCEL
    if row.state in IN_FLIGHT:
        return Teardown.PENDING
    return Teardown.NOTHING_RUNNING


def _is_newer(row: NodeRow, held: int, execution: Execution) -> bool:
    return held > execution.generation or (held == execution.generation and row.pod_uid != execution.pod_uid)


def _excuses(row: NodeRow, rollback: RollbackReceipt, generation: int) -> bool:
    without_route = row.generation is None and row.pod_uid is None
    if row.state is NodeState.SUSPENDED:
        # §7: covers (==), and the row keeps an older pair or no route at all
        older_pair = row.generation is not None and row.generation < generation and row.pod_uid is not None
        return rollback.generation == generation and (older_pair or without_route)
    # §7: created or stopped: covers (≥), no route generation and no pod UID
    return rollback.generation >= generation and without_route


def covered(
    row: NodeRow | None,
    fence: Fence,
    rollback: RollbackReceipt | None,
    older: DeleteReceipt | None,
    *,
    destroyed: bool,
) -> int:
    """Return what the receipt of a row's deletion covers (§4); the rollback receipt need not be current here.

    At least 1, as generations are.
    """
    if destroyed:
        return GENERATION_MAX
    known = [1, fence.claimed]
    if row is not None and row.generation is not None:
        known.append(row.generation)
    if rollback is not None:
        known.append(rollback.generation)
    if older is not None:
        known.append(older.covers_generation)
    return max(known)


def is_evictable(row: NodeRow, *, durable: bool, pinned: bool, open_job: bool, idle_since: float) -> bool:
    """Tell whether a row may be evicted (§8).

    Args:
        row: the sandbox's row.
        durable: its artifact is confirmed by the object store.
        pinned: something else still needs its artifact here.
        open_job: an upload of it is not finished.
        idle_since: rows with a later activity stay, in wall-clock seconds.
    """
    if row.bound or row.state not in DORMANT or row.last_activity > idle_since or pinned or open_job:
        return False
    return durable or row.artifact_id is None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What the control plane says of one sandbox: its current generation and artifact, or that it is destroyed.

    ``confirmed``: endings up to this generation have been taken note of and need not be reported again.
    """

    sandbox_id: str
    generation: int
    artifact_id: str | None = None
    destroyed: bool = False
    confirmed: int = 0


class Reconcile(StrEnum):
    """What an inventory fact makes of a row."""

    KEEP = "keep"
    DESTROY = "destroy"
    END_STALE = "end_stale"
    DELETE_STALE = "delete_stale"


def reconcile(row: NodeRow, fact: Fact) -> Reconcile:
    """Decide what a fact means for a row; absence from a list is no authority, so this is never asked without one (§8).

    A stale execution is ended without a capture (§9, leases). A stale row at rest goes, but never one that holds the
    current artifact: what is no longer needed of that, eviction finds out.
    """
    if fact.destroyed:
        return Reconcile.DESTROY
    if row.bound or (row.generation or 0) >= fact.generation or row.state in IN_FLIGHT:
        return Reconcile.KEEP
    if row.state is NodeState.RUNNING:
        return Reconcile.END_STALE
    if row.artifact_id is not None and row.artifact_id == fact.artifact_id:
        return Reconcile.KEEP
    return Reconcile.DELETE_STALE


def details(refusal: Refusal, *, node_store_id: str, route: Route | Execution | None, fence: Fence) -> dict[str, Any]:
    """Return a refusal's machine-readable details, signed by the node's store id (§5)."""
    found: dict[str, Any] = {
        "reason": refusal.reason.value,
        "node_store_id": node_store_id,
        "floor": fence.floor,
        "ended": [msgspec.to_builtins(ended) for ended in fence.ended],
        "grpc_status": STATUS[refusal.reason][1],
    }
    if route is not None:
        found["generation"] = route.generation
        if isinstance(route, Route):
            found["attempt_id"] = route.attempt_id
    return found


def refused(
    refusal: Refusal, sandbox_id: str, action: str, *, node_store_id: str, route: Route | Execution | None, fence: Fence
) -> FluxError:
    """Return the error that carries a refusal: "cannot start sandbox s1: generation 2 was retired on this node"."""
    return FluxError(
        STATUS[refusal.reason][0],
        f"cannot {action} sandbox {sandbox_id}: {refusal.message}",
        details(refusal, node_store_id=node_store_id, route=route, fence=fence),
    )
