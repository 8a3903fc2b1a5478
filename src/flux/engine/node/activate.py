"""Create and Start: pre-check, claim, effects, commit; on any failure everything is as it was (§5)."""

from __future__ import annotations

import msgspec

from flux.core.errors import FluxError
from flux.core.fence import (
    Admission,
    Admitted,
    AlreadyRunning,
    Fence,
    InProgress,
    NodeRow,
    Reason,
    Refusal,
    admit,
    may_commit,
)
from flux.core.lifecycle import LIFE, NodeEvent, NodeState
from flux.core.node import Activate, Activated
from flux.core.receipts import read_rollback
from flux.core.route import GENERATION_MAX, checked_route, checked_sandbox_id
from flux.engine.node import answers, mend, rollback, saving
from flux.engine.node.desk import Holding, Use, holding, using_artifacts
from flux.engine.node.node import Node, digest_of
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, fences, sandboxes
from flux.store.artifact_rows import ArtifactRow
from flux.store.database import Transaction


class _Cancelled(Exception):
    """The claim is no longer in force: its generation was retired, or the sandbox destroyed."""


def steps(node: Node, request: Activate) -> Steps[Activated]:
    """Start one generation of a sandbox; a repetition of its attempt joins it or gets the same answer.

    Raises:
        FluxError: a refusal (``core.fence.Reason``), which changes nothing; a failure, after which everything is as it
            was before; ``unknown_outcome`` if that could not be brought about yet. The first two carry the node's
            details.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_route(request.route)
    node.check_store(request.node_store_id, request.sandbox_id, _action(request), request.route)
    while True:
        admission = _pre_check(node, request)  # §5.1: before any effect
        yield Point.ACTIVATE_CHECKED
        if isinstance(admission, AlreadyRunning):
            return _answer(node, request)
        if isinstance(admission, InProgress):
            yield from _join(node, request)
            continue
        with holding(node.desk, request.sandbox_id) as mine, using_artifacts(node.desk) as use:
            claimed = _claim(node, request, mine)  # §5.2
            if claimed is not None:
                return (yield from _carry_out(node, request, claimed, use))


def _join(node: Node, request: Activate) -> Steps[None]:
    """Wait for whoever works on the same attempt; do it oneself if nobody does any more."""
    mended = yield from mend.mend(node, request.sandbox_id)
    if not mended:
        yield Point.ACTIVATE_JOINED


def _pre_check(node: Node, request: Activate) -> Admission:
    with node.reading() as tx:
        return _decide(node, tx, request)[0]


def _decide(node: Node, tx: Transaction, request: Activate) -> tuple[Admission, NodeRow | None]:
    """Decide on the activation; pre-check and claim, Create and Start, all ask this. Raises the refusal (§5.2)."""
    row = sandboxes.row(tx, request.sandbox_id)
    fence = fences.find(tx, request.sandbox_id)
    admission = admit(
        row,
        fence,
        None if row is None else read_rollback(row.receipt),
        request.route,
        request_digest=request.digest(),
        cold=request.artifact is None,
    )
    if isinstance(admission, Admitted) and node.desk.is_swept(request.sandbox_id):
        admission = Refusal(reason=Reason.ROW_BUSY, message="old files of it are being removed; ask the same again")
    if isinstance(admission, Refusal):
        raise node.refusal(admission, request.sandbox_id, _action(request), request.route, fence)
    return admission, row


def _claim(node: Node, request: Activate, mine: Holding) -> NodeRow | None:
    """Repeat every check and take the row; ``None`` if the same attempt was claimed meanwhile: it is to be joined."""
    with node.writing() as tx:
        admission, row = _decide(node, tx, request)
        if not isinstance(admission, Admitted):
            return None
        _learn(tx, request)
        row = row or _rebuilt(tx, request)
        fences.claim(tx, request.sandbox_id, request.route, request.digest())
        sandboxes.set_record(tx, request.sandbox)
        claimed = sandboxes.update(tx, _claimed(row, request))
        mine.take()
    return claimed


def _claimed(row: NodeRow, request: Activate) -> NodeRow:
    route = request.route
    return msgspec.structs.replace(
        row,
        state=LIFE.next(row.state, NodeEvent.ACTIVATE),
        generation=route.generation,
        attempt_id=route.attempt_id,
        pod_uid=route.pod_uid,
        prior_state=row.state,
        prior_generation=row.generation,
        prior_pod_uid=row.pod_uid,
        restoring=None if request.artifact is None else request.artifact.id,
    )


def _learn(tx: Transaction, request: Activate) -> None:
    """Remember an artifact that another node made, by the digest that it must have."""
    artifact = request.artifact
    if artifact is not None:
        state = "durable" if artifact.durable else "local"
        learned = ArtifactRow(
            id=artifact.id, sandbox_id=request.sandbox_id, generation=0, digest=artifact.digest, kind="suspend",
            state="durable" if state == "durable" else "local", created_at=tx.now,
        )  # fmt: skip
        artifact_rows.insert(tx, learned)


def _rebuilt(tx: Transaction, request: Activate) -> NodeRow:
    """Build the row of a sandbox that is new here, or was evicted: it rests on what it is to be restored from."""
    artifact = request.artifact
    row = NodeRow(
        sandbox_id=request.sandbox_id,
        state=NodeState.SUSPENDED if artifact is not None else LIFE.next(NodeState.GONE, NodeEvent.CREATE),
        version=fences.next_version(tx, request.sandbox_id),
        artifact_id=None if artifact is None else artifact.id,
        backup=artifact is not None and artifact.durable,
        last_activity=tx.now,
        bound=request.sandbox.layout == "bound",
    )
    sandboxes.insert(tx, row, request.sandbox)
    return row


def _carry_out(node: Node, request: Activate, claimed: NodeRow, use: Use) -> Steps[Activated]:
    stage = _Stage()
    try:
        yield Point.ACTIVATE_CLAIMED
        while not use.begin():
            yield Point.ACTIVATE_JOINED
        yield from _effects(node, request, claimed, stage)
        _commit(node, request, claimed)  # §5.4
    except Exception as error:
        if not _happened(node, request):
            raise (yield from _undone(node, request, claimed, error, stage.name)) from error
    yield Point.ACTIVATE_COMMITTED
    route = request.route
    node.observer.note(
        "activated", sandbox=request.sandbox_id, generation=route.generation, attempt=route.attempt_id,
        artifact=claimed.restoring,
    )  # fmt: skip
    return _answer(node, request)


class _Stage:
    """How far an activation has come, for the reason of its failure."""

    name = "AdmissionFailed"


def _effects(node: Node, request: Activate, claimed: NodeRow, stage: _Stage) -> Steps[None]:
    """§5.3: outside any transaction."""
    sandbox, generation = request.sandbox, request.route.generation
    node.executions.admit(sandbox, request.artifact)
    yield Point.ACTIVATE_ADMITTED
    stage.name = "PrepareFailed"
    yield Point.ACTIVATE_PREPARE
    node.executions.prepare(sandbox, generation, request.artifact)
    yield Point.ACTIVATE_PREPARED
    stage.name = "StartFailed"
    with node.reading() as tx:
        _require(tx, request, claimed)  # what was torn down meanwhile need not even begin to run
    node.executions.start(sandbox, generation)
    yield Point.ACTIVATE_STARTED
    stage.name = "CommitFailed"


def _require(tx: Transaction, request: Activate, claimed: NodeRow) -> None:
    row, fence = sandboxes.row(tx, request.sandbox_id), fences.find(tx, request.sandbox_id)
    if not may_commit(row, fence, request.route, claimed.version):
        raise _Cancelled


def _commit(node: Node, request: Activate, claimed: NodeRow) -> None:
    with node.writing() as tx:
        _require(tx, request, claimed)
        rests_on = claimed.restoring or claimed.artifact_id
        running = msgspec.structs.replace(
            claimed,
            state=LIFE.next(claimed.state, NodeEvent.ACTIVATED),
            prior_state=None,
            prior_generation=None,
            prior_pod_uid=None,
            artifact_id=rests_on,
            restoring=None,
            backup=artifact_rows.is_durable(tx, rests_on),
            last_activity=tx.now,
            receipt=saving.activated_receipt(claimed, tx.now),
        )
        if sandboxes.update(tx, running) is None:
            raise _Cancelled
        sandboxes.set_credential(tx, request.sandbox_id, digest_of(node.credential(request.sandbox_id, request.route)))


def _happened(node: Node, request: Activate) -> bool:
    """Tell whether the commit is there although it was reported to have failed."""
    with node.reading() as tx:
        row = sandboxes.row(tx, request.sandbox_id)
    return row is not None and row.state is NodeState.RUNNING and row.holds(request.route)


def _undone(node: Node, request: Activate, claimed: NodeRow, error: Exception, stage: str) -> Steps[FluxError]:
    """§5.5: undo the effects, roll back, and say what it was that failed."""
    sandbox_id, route = request.sandbox_id, request.route
    try:
        restored = yield from rollback.undo(node, claimed, _why(error))
        if isinstance(error, _Cancelled):
            return _cancelled(node, request, restored=restored)
        return answers.failed(node, error, sandbox_id, _action(request), route, stage)
    except Exception as second:
        return answers.unknown(second, sandbox_id, _action(request))


def _why(error: Exception) -> str:
    if isinstance(error, _Cancelled):
        return "it was torn down while it was being started"
    return error.message if isinstance(error, FluxError) else type(error).__name__


def _cancelled(node: Node, request: Activate, *, restored: bool) -> FluxError:
    """An activation that was torn down has the outcome that its repetition gets: final for its generation (§9.2)."""
    with node.reading() as tx:
        fence: Fence = fences.find(tx, request.sandbox_id)
    if restored and fence.retired < GENERATION_MAX:
        message = f"attempt {request.route.attempt_id} was rolled back: it was torn down while it was being started"
        refusal = Refusal(reason=Reason.ROLLED_BACK_ATTEMPT, message=message)
    else:
        message = f"generation {request.route.generation} was retired on this node"
        refusal = Refusal(reason=Reason.RETIRED_GENERATION, message=message)
    return node.refusal(refusal, request.sandbox_id, _action(request), request.route, fence)


def _answer(node: Node, request: Activate) -> Activated:
    return Activated(
        route=request.route,
        credential=node.credential(request.sandbox_id, request.route),
        address=node.settings.address,
    )


def _action(request: Activate) -> str:
    return "create" if request.create else "start"
