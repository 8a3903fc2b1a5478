"""The two ends of a suspension or a snapshot: letting the execution go on, and finishing what was named (§6)."""

from __future__ import annotations

import msgspec

from flux.core.fence import Ended, EndedAs, NodeRow
from flux.core.lifecycle import LIFE, NodeEvent, NodeState
from flux.core.receipts import ReceiptKind, TransitionReceipt, write
from flux.core.sandbox import Sandbox
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, endings, sandboxes
from flux.store.database import Transaction


def undo(node: Node, sandbox: Sandbox, row: NodeRow) -> Steps[NodeRow | None]:
    """Let a sandbox go on whose suspension, or snapshot, came to nothing; one that cannot go on has stopped.

    Returns:
        The row as it is then; ``None`` if somebody else has written it meanwhile.
    """
    assert row.generation is not None
    node.executions.resume(sandbox, row.generation)
    suspending = row.state is NodeState.SUSPENDING
    event = NodeEvent.SUSPEND_FAILED if suspending else NodeEvent.CAPTURE_FAILED
    if suspending and not node.executions.alive(sandbox, row.generation):
        node.executions.kill(sandbox, row.generation)
        event = NodeEvent.SUSPEND_FAILED_DEAD
    yield Point.SUSPEND_UNDONE
    with node.writing() as tx:
        written = _settle(tx, row, event)
    yield Point.SUSPEND_UNDONE
    return written


def _settle(tx: Transaction, row: NodeRow, event: NodeEvent) -> NodeRow | None:
    settled = msgspec.structs.replace(row, state=LIFE.next(row.state, event))
    if event is not NodeEvent.SUSPEND_FAILED_DEAD:
        return sandboxes.update(tx, settled)
    stopped = stopped_receipt(row, tx.now)
    written = sandboxes.update(tx, msgspec.structs.replace(settled, receipt=stopped, last_activity=tx.now))
    if written is not None:
        ends(tx, row, EndedAs.STOPPED, None)
    return written


def finish(node: Node, sandbox: Sandbox, row: NodeRow) -> Steps[NodeRow | None]:
    """Drive a suspension on whose artifact is named: stop the execution, then transaction 2 (§6)."""
    assert row.generation is not None
    node.executions.end(sandbox, row.generation)
    yield Point.SUSPEND_ENDED
    with node.writing() as tx:
        written = sandboxes.update(
            tx,
            msgspec.structs.replace(
                row,
                state=LIFE.next(row.state, NodeEvent.SUSPENDED),
                artifact_id=row.named,
                named=None,
                backup=artifact_rows.is_durable(tx, row.named),
                last_activity=tx.now,
                receipt=_receipt(ReceiptKind.SUSPENDED, row, row.named, tx.now),
            ),
        )
        if written is not None:
            ends(tx, row, EndedAs.SUSPENDED, row.named)
    yield Point.SUSPEND_COMMITTED
    node.observer.note(
        "suspended", sandbox=row.sandbox_id, generation=row.generation, attempt=row.attempt_id, artifact=row.named
    )
    return written


def ends(tx: Transaction, row: NodeRow, ended_as: EndedAs, artifact_id: str | None) -> None:
    """Record the end of a row's execution: how it ended, and that its credential opens nothing any more."""
    assert row.generation is not None
    endings.record(tx, row.sandbox_id, Ended(generation=row.generation, ended_as=ended_as, artifact_id=artifact_id))
    sandboxes.set_credential(tx, row.sandbox_id, None)


def stopped_receipt(row: NodeRow, now: float) -> str:
    """Return the stored receipt of an execution that ended without being saved."""
    return _receipt(ReceiptKind.STOPPED, row, None, now)


def captured_receipt(row: NodeRow, artifact_id: str, now: float) -> str:
    """Return the stored receipt of a snapshot."""
    return _receipt(ReceiptKind.CAPTURED, row, artifact_id, now)


def activated_receipt(row: NodeRow, now: float) -> str:
    """Return the stored receipt of an activation, with the artifact that it restored."""
    return _receipt(ReceiptKind.ACTIVATED, row, row.restoring, now)


def _receipt(kind: ReceiptKind, row: NodeRow, artifact_id: str | None, now: float) -> str:
    receipt = TransitionReceipt(
        generation=row.generation or 0,
        attempt_id=row.attempt_id,
        pod_uid=row.pod_uid or "",
        artifact_id=artifact_id,
        at=now,
    )
    return write(kind, receipt)
