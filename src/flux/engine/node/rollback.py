"""Undoing an activation: first its effects, then one transaction that restores what was (§4, §5.5)."""

from __future__ import annotations

import msgspec

from flux.core.fence import Ended, EndedAs, NodeRow
from flux.core.lifecycle import LIFE, NodeState, rolled_back
from flux.core.receipts import ReceiptKind, RollbackReceipt, write
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, endings, sandboxes
from flux.store.database import Transaction

_REASON_MAX = 300


def undo(node: Node, claimed: NodeRow, reason: str) -> Steps[bool]:
    """Undo the effects of a claim, then roll it back.

    Returns:
        Whether it was rolled back; ``False`` if the row is no longer as it was claimed: the effects are undone only.
    """
    assert claimed.generation is not None
    node.executions.discard(claimed.sandbox_id, claimed.generation)
    yield Point.ACTIVATE_UNDONE
    with node.writing() as tx:
        restored = restore(tx, claimed, reason)
    yield Point.ACTIVATE_ROLLED_BACK
    node.observer.note(
        "rolled back", sandbox=claimed.sandbox_id, generation=claimed.generation, attempt=claimed.attempt_id,
        artifact=claimed.artifact_id, reason=reason,
    )  # fmt: skip
    return restored is not None


def restore(tx: Transaction, claimed: NodeRow, reason: str) -> NodeRow | None:
    """Make a row what it was before the claim, with a receipt; guarded by the claim's version (§4)."""
    assert claimed.generation is not None
    state = LIFE.next(claimed.state, rolled_back(claimed.prior_state or NodeState.CREATED))
    generation, pod_uid = _prior_route(claimed)
    receipt = RollbackReceipt(
        generation=claimed.generation,
        attempt_id=claimed.attempt_id or "",
        pod_uid=claimed.pod_uid or "",
        restored_state=state,
        artifact_id=claimed.artifact_id,
        reason=reason[:_REASON_MAX],
        at=tx.now,
    )
    restored = msgspec.structs.replace(
        claimed,
        state=state,
        generation=generation,
        attempt_id=None,
        pod_uid=pod_uid,
        prior_state=None,
        prior_generation=None,
        prior_pod_uid=None,
        restoring=None,
        backup=claimed.backup or artifact_rows.is_durable(tx, claimed.artifact_id),
        receipt=write(ReceiptKind.ROLLED_BACK, receipt),
    )
    written = sandboxes.update(tx, restored)
    if written is not None:
        ended = Ended(generation=claimed.generation, ended_as=EndedAs.ROLLED_BACK)
        endings.record(tx, claimed.sandbox_id, ended)
    return written


def _prior_route(claimed: NodeRow) -> tuple[int | None, str | None]:
    """An older generation together with its pod UID, or neither (§4)."""
    generation, pod_uid = claimed.prior_generation, claimed.prior_pod_uid
    if generation is None or pod_uid is None or generation >= (claimed.generation or 0):
        return None, None
    return generation, pod_uid
