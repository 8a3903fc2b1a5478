"""The one way in which a row is deleted: every path leaves its delete receipt first, in the same transaction (§4)."""

from __future__ import annotations

from typing import Literal

import msgspec

from flux.core.fence import Ended, EndedAs, NodeRow, covered
from flux.core.lifecycle import LIFE, NodeEvent
from flux.core.receipts import DeleteReceipt, read_rollback
from flux.engine.node.desk import Holding
from flux.engine.node.node import Node, record_of
from flux.failpoints import Point, Steps
from flux.store import endings, fences, sandboxes, upload_jobs
from flux.store.database import Transaction

Intent = Literal["evicted", "stale", "destroyed", "cleaned_up"]


class WitnessChanged(Exception):
    """A row is no longer the one that was to be deleted; the transaction is dropped, its receipt included."""


def intend(tx: Transaction, row: NodeRow, intent: Intent, mine: Holding) -> NodeRow:
    """Record the intent to delete a row, which recovery drives on. Raises ``WitnessChanged``."""
    event = NodeEvent.DESTROY if intent == "destroyed" else NodeEvent.DELETE
    written = sandboxes.update(tx, msgspec.structs.replace(row, state=LIFE.next(row.state, event), intent=intent))
    if written is None:
        raise WitnessChanged
    mine.take()
    return written


def delete_row(tx: Transaction, witness: NodeRow) -> DeleteReceipt:
    """Write the delete receipt, then delete the row, if it still is the witness. Raises ``WitnessChanged``."""
    receipt = record(tx, witness.sandbox_id, witness, _intent(witness))
    if witness.intent == "destroyed":
        if witness.generation is not None:
            ended = Ended(generation=witness.generation, ended_as=EndedAs.DESTROYED)
            endings.record(tx, witness.sandbox_id, ended)
        upload_jobs.cancel_of_sandbox(tx, witness.sandbox_id)
    if not sandboxes.delete(tx, witness.sandbox_id, witness.version):
        raise WitnessChanged
    return receipt


def record(tx: Transaction, sandbox_id: str, row: NodeRow | None, reason: Intent) -> DeleteReceipt:
    """Write the delete receipt of a row, or of a destroyed sandbox that has none here (§8)."""
    receipt = DeleteReceipt(
        sandbox_id=sandbox_id,
        covers_generation=covered(
            row,
            fences.find(tx, sandbox_id),
            None if row is None else read_rollback(row.receipt),
            fences.delete_receipt(tx, sandbox_id),
            destroyed=reason == "destroyed",
        ),
        reason=reason,
        at=tx.now,
    )
    fences.set_delete_receipt(tx, receipt, 0 if row is None else row.version)
    return receipt


def drive(node: Node, row: NodeRow) -> Steps[bool]:
    """Drive a recorded deletion on: end everything, remove everything, then the row.

    Returns:
        ``False`` if a destroy has taken the row over meanwhile; it drives on itself.
    """
    with node.reading() as tx:
        sandbox = record_of(tx, row.sandbox_id)
    if row.generation is not None and row.intent == "destroyed":
        node.executions.kill(sandbox, row.generation)
    yield Point.DELETE_ENDED
    if row.intent == "destroyed":
        node.destroyed(sandbox)
    node.executions.remove(row.sandbox_id)
    yield Point.DELETE_REMOVED
    try:
        with node.writing() as tx:
            delete_row(tx, row)
    except WitnessChanged:
        return False
    yield Point.DELETE_COMMITTED
    return True


def _intent(row: NodeRow) -> Intent:
    intents: tuple[Intent, ...] = ("evicted", "stale", "destroyed")
    return next((intent for intent in intents if intent == row.intent), "cleaned_up")
