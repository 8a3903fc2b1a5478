"""Suspend: save an execution to an artifact, then end it; a repetition returns the same artifact (§6)."""

from __future__ import annotations

import msgspec

from flux.core.errors import FluxError
from flux.core.fence import NodeRow, Reason, Refusal, guard
from flux.core.lifecycle import IN_FLIGHT, LIFE, NodeEvent, NodeState
from flux.core.node import ArtifactReference, Suspend, Suspended
from flux.core.route import Execution, checked_generation, checked_sandbox_id
from flux.core.sandbox import Sandbox
from flux.engine.node import answers, mend, saving
from flux.engine.node.desk import Holding, Use, holding, using_artifacts
from flux.engine.node.node import Node, record_of, reference_of
from flux.failpoints import Point, Steps
from flux.ports.executions import Made
from flux.store import artifact_rows, fences, sandboxes, upload_jobs
from flux.store.artifact_rows import ArtifactRow
from flux.store.database import Transaction

_ACTION = "suspend"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that is being saved: its row in flight, its record, and what its artifact will be based on."""

    row: NodeRow
    sandbox: Sandbox
    parent: ArtifactReference | None

    @property
    def generation(self) -> int:
        """The execution's generation."""
        assert self.row.generation is not None
        return self.row.generation


class Gone(Exception):
    """A row in flight was taken over: its sandbox is being destroyed."""


def steps(node: Node, request: Suspend) -> Steps[Suspended]:
    """Save an execution and end it.

    Raises:
        FluxError: ``fenced`` (not the execution that holds the sandbox), ``illegal_state`` (nothing runs),
            ``unavailable`` (in flight), ``not_found``: nothing has changed. A failure leaves the sandbox running and
            its original artifact current; once the new artifact is named, ``unknown_outcome``: it is driven on.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_generation(request.execution.generation)
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, request.execution)
    return (yield from execute(node, request.sandbox_id, request.execution))


def execute(node: Node, sandbox_id: str, execution: Execution) -> Steps[Suspended]:
    """Do what ``steps`` does, for a teardown too."""
    with holding(node.desk, sandbox_id) as mine, using_artifacts(node.desk) as use:
        begun = yield from _begun(node, sandbox_id, execution, mine)
        if isinstance(begun, Suspended):
            return begun
        named, new_job = yield from _save(node, begun, execution, use)
        yield Point.SUSPEND_NAMED
        try:
            done = yield from saving.finish(node, begun.sandbox, named)
        except Exception as error:
            raise answers.unknown(error, sandbox_id, _ACTION) from error
        if done is None:
            raise destroyed(node, sandbox_id, _ACTION, execution)
        return _answer(node, done, new_job=new_job)


def _begun(node: Node, sandbox_id: str, execution: Execution, mine: Holding) -> Steps[Begun | Suspended]:
    while True:
        begun = _begin(node, sandbox_id, execution, mine)
        if begun is not None:
            return begun
        yield from mend.mend(node, sandbox_id)


def _begin(node: Node, sandbox_id: str, execution: Execution, mine: Holding) -> Begun | Suspended | None:
    """Put the row in flight, or find it suspended; ``None`` if it was abandoned in flight."""
    with node.writing() as tx:
        row = sandboxes.row(tx, sandbox_id)
        row = required(node, tx, row, sandbox_id, execution, _ACTION)
        if row.state is NodeState.SUSPENDED:  # §6: a repetition returns the same artifact
            return _suspended(tx, row, new_job=False)
        if is_abandoned(node, tx, row, execution, _ACTION):
            return None
        return begin(tx, row, NodeEvent.SUSPEND, mine)


def required(
    node: Node, tx: Transaction, row: NodeRow | None, sandbox_id: str, execution: Execution, action: str
) -> NodeRow:
    """Return the row if it is held by exactly this execution. Raises the refusal (§6)."""
    refusal = guard(row, execution)
    if refusal is not None or row is None:
        refusal = refusal or Refusal(reason=Reason.UNKNOWN_SANDBOX, message="there is none")
        raise node.refusal(refusal, sandbox_id, action, execution, fences.find(tx, sandbox_id))
    return row


def is_abandoned(node: Node, tx: Transaction, row: NodeRow, execution: Execution, action: str) -> bool:
    """Tell whether a row in flight has nobody who works on it. Raises the refusal if it is busy, or nothing runs."""
    if row.state is NodeState.RUNNING:
        return False
    if row.state in IN_FLIGHT and node.is_abandoned(row):
        return True
    if row.state in IN_FLIGHT:
        refusal = Refusal(
            reason=Reason.ROW_BUSY, message=f"the sandbox is {row.state.value} right now; ask the same again"
        )
    else:
        refusal = Refusal(
            reason=Reason.NOT_RUNNING, message=f"the sandbox is {row.state.value}, nothing runs; resume it first"
        )
    raise node.refusal(refusal, row.sandbox_id, action, execution, fences.find(tx, row.sandbox_id))


def begin(tx: Transaction, row: NodeRow, event: NodeEvent, mine: Holding) -> Begun:
    """Put a running row in flight for a suspension or a snapshot."""
    state = LIFE.next(row.state, event)
    written = sandboxes.update(tx, msgspec.structs.replace(row, state=state, last_activity=tx.now))
    assert written is not None  # it was read in this very transaction
    mine.take()
    return Begun(row=written, sandbox=record_of(tx, row.sandbox_id), parent=reference_of(tx, row.artifact_id))


def _save(node: Node, begun: Begun, execution: Execution, use: Use) -> Steps[tuple[NodeRow, bool]]:
    """Everything up to transaction 1; a failure before it leaves the sandbox as it was."""
    try:
        yield Point.SUSPEND_BEGUN
        while not use.begin():
            yield Point.TEARDOWN_WAITED
        node.executions.quiesce(begun.sandbox, begun.generation)
        yield Point.SUSPEND_QUIESCED
        made = node.executions.capture(
            begun.sandbox, begun.generation, begun.parent, created_at=begun.row.last_activity, snapshot=False
        )
        yield Point.SUSPEND_CAPTURED
        return _name(node, begun, made)
    except Exception as error:
        named = _named_after_all(node, begun)
        if named is not None:
            return named, True
        raise (yield from given_up(node, begun, execution, error, _ACTION)) from error


def _name(node: Node, begun: Begun, made: Made) -> tuple[NodeRow, bool]:
    """Transaction 1: the artifact's row, named by the row that is still suspending, its upload queued (§6)."""
    with node.writing() as tx:
        new_job = keep(node, tx, begun, made, "suspend")
        named = sandboxes.update(tx, msgspec.structs.replace(begun.row, named=made.reference.id))
        if named is None:
            raise Gone
        return named, new_job


def keep(node: Node, tx: Transaction, begun: Begun, made: Made, kind: artifact_rows.Kind) -> bool:
    """Record an artifact that was made, and queue its upload; tell whether a job was queued."""
    row = ArtifactRow(
        id=made.reference.id,
        sandbox_id=begun.sandbox.id,
        generation=begun.generation,
        digest=made.reference.digest,
        kind=kind,
        state="local",
        parent=None if begun.parent is None else begun.parent.id,
        size=made.size,
        stored=made.stored,
        created_at=begun.row.last_activity,
    )
    artifact_rows.insert(tx, row)
    if not node.settings.uploads or begun.row.bound or artifact_rows.is_durable(tx, row.id):
        return False
    return upload_jobs.queue(tx, row.id, node.moment())


def _named_after_all(node: Node, begun: Begun) -> NodeRow | None:
    """Return the row if transaction 1 is there although it was reported to have failed: it is driven on."""
    with node.reading() as tx:
        row = sandboxes.row(tx, begun.row.sandbox_id)
    if row is None or row.named is None or row.version != begun.row.version + 1:
        return None
    return row


def given_up(node: Node, begun: Begun, execution: Execution, error: Exception, action: str) -> Steps[FluxError]:
    """Let the sandbox go on and return what went wrong."""
    sandbox_id = begun.row.sandbox_id
    try:
        settled = yield from saving.undo(node, begun.sandbox, begun.row)
    except Exception as second:
        return answers.unknown(second, sandbox_id, action)
    if settled is None:
        return destroyed(node, sandbox_id, action, execution)
    if settled.state is NodeState.STOPPED:
        refusal = Refusal(reason=Reason.NOT_RUNNING, message="its execution has ended by itself; resume it first")
        with node.reading() as tx:
            fence = fences.find(tx, sandbox_id)
        return node.refusal(refusal, sandbox_id, action, execution, fence)
    return answers.failed(node, error, sandbox_id, action, execution, f"{action.capitalize()}Failed")


def destroyed(node: Node, sandbox_id: str, action: str, execution: Execution) -> FluxError:
    """Return the refusal for a sandbox that was destroyed while it was worked on."""
    with node.reading() as tx:
        fence = fences.find(tx, sandbox_id)
    refusal = Refusal(reason=Reason.UNKNOWN_SANDBOX, message="it is being destroyed")
    return node.refusal(refusal, sandbox_id, action, execution, fence)


def _answer(node: Node, row: NodeRow, *, new_job: bool) -> Suspended:
    with node.reading() as tx:
        return _suspended(tx, row, new_job=new_job)


def _suspended(tx: Transaction, row: NodeRow, *, new_job: bool) -> Suspended:
    artifact = reference_of(tx, row.artifact_id)
    assert artifact is not None and row.generation is not None  # no row is suspended without both
    return Suspended(generation=row.generation, artifact=artifact, new_job=new_job)
