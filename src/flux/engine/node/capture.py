"""Capture: a snapshot of a running execution, which goes on; never a candidate for the current artifact (§6)."""

from __future__ import annotations

import msgspec

from flux.core.lifecycle import LIFE, NodeEvent
from flux.core.node import Capture, Captured
from flux.core.route import checked_generation, checked_sandbox_id, checked_token
from flux.engine.node import mend, saving
from flux.engine.node.desk import Holding, Use, holding, using_artifacts
from flux.engine.node.node import Node
from flux.engine.node.suspend import Begun, Gone, begin, destroyed, given_up, is_abandoned, keep, required
from flux.failpoints import Point, Steps
from flux.ports.executions import Made
from flux.store import artifact_rows, sandboxes

_ACTION = "snapshot"


def steps(node: Node, request: Capture) -> Steps[Captured]:
    """Save a running execution and let it go on; a repetition with the same snapshot id gets the same artifact.

    Raises:
        FluxError: as ``suspend.steps``; the sandbox runs on in every case.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_generation(request.execution.generation)
    checked_token(request.snapshot_id, "snapshot id")
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, request.execution)
    with holding(node.desk, request.sandbox_id) as mine, using_artifacts(node.desk) as use:
        while True:
            begun = _begin(node, request, mine)
            if isinstance(begun, Captured):
                return begun
            if begun is not None:
                break
            yield from mend.mend(node, request.sandbox_id)
        return (yield from _save(node, request, begun, use))


def _begin(node: Node, request: Capture, mine: Holding) -> Begun | Captured | None:
    with node.writing() as tx:
        taken = artifact_rows.pinned_by(tx, request.snapshot_id)
        if taken is not None and taken.sandbox_id == request.sandbox_id:
            return Captured(artifact=taken.reference)
        row = sandboxes.row(tx, request.sandbox_id)
        row = required(node, tx, row, request.sandbox_id, request.execution, _ACTION)
        if is_abandoned(node, tx, row, request.execution, _ACTION):
            return None
        return begin(tx, row, NodeEvent.CAPTURE, mine)


def _save(node: Node, request: Capture, begun: Begun, use: Use) -> Steps[Captured]:
    try:
        yield Point.CAPTURE_BEGUN
        while not use.begin():
            yield Point.TEARDOWN_WAITED
        node.executions.quiesce(begun.sandbox, begun.generation)
        made = node.executions.capture(
            begun.sandbox, begun.generation, begun.parent, created_at=begun.row.last_activity, snapshot=True
        )
        yield Point.CAPTURE_MADE
        node.executions.resume(begun.sandbox, begun.generation)
        _commit(node, request, begun, made)
    except Gone:
        raise destroyed(node, request.sandbox_id, _ACTION, request.execution) from None
    except Exception as error:
        raise (yield from given_up(node, begun, request.execution, error, _ACTION)) from error
    yield Point.CAPTURE_COMMITTED
    return Captured(artifact=made.reference)


def _commit(node: Node, request: Capture, begun: Begun, made: Made) -> None:
    with node.writing() as tx:
        keep(node, tx, begun, made, "snapshot")
        artifact_rows.pin(tx, request.snapshot_id, made.reference.id)
        running = msgspec.structs.replace(
            begun.row,
            state=LIFE.next(begun.row.state, NodeEvent.CAPTURED),
            receipt=saving.captured_receipt(begun.row, made.reference.id, tx.now),
        )
        if sandboxes.update(tx, running) is None:
            raise Gone
