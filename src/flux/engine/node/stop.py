"""Stop: end an execution without saving it; its last artifact stays current (§3)."""

from __future__ import annotations

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.core.node import Stop, Stopped
from flux.core.route import checked_generation, checked_sandbox_id
from flux.core.sandbox import Sandbox
from flux.engine.node import answers, ending, mend
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node, record_of, reference_of
from flux.engine.node.suspend import destroyed, is_abandoned, required
from flux.failpoints import Point, Steps
from flux.store import sandboxes

_ACTION = "stop"


def steps(node: Node, request: Stop) -> Steps[Stopped]:
    """End an execution without saving it; a repetition gets the same answer.

    Raises:
        FluxError: as ``suspend.steps``; ``unknown_outcome`` once it has begun: it is driven on.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_generation(request.execution.generation)
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, request.execution)
    with holding(node.desk, request.sandbox_id) as mine:
        while True:
            begun = _begin(node, request, mine)
            if isinstance(begun, Stopped):
                return begun
            if begun is not None:
                break
            yield from mend.mend(node, request.sandbox_id)
        return (yield from _end(node, request, *begun))


def _begin(node: Node, request: Stop, mine: Holding) -> tuple[Sandbox, NodeRow] | Stopped | None:
    with node.writing() as tx:
        row = sandboxes.row(tx, request.sandbox_id)
        row = required(node, tx, row, request.sandbox_id, request.execution, _ACTION)
        if row.state is NodeState.STOPPED:
            generation = request.execution.generation
            return Stopped(generation=generation, artifact=reference_of(tx, row.artifact_id))
        if is_abandoned(node, tx, row, request.execution, _ACTION):
            return None
        stopping = ending.begin(tx, row, mine)
        assert stopping is not None  # it was read in this very transaction
        return record_of(tx, request.sandbox_id), stopping


def _end(node: Node, request: Stop, sandbox: Sandbox, row: NodeRow) -> Steps[Stopped]:
    try:
        yield Point.STOP_BEGUN
        stopped = yield from ending.finish(node, sandbox, row)
    except Exception as error:
        raise answers.unknown(error, request.sandbox_id, _ACTION) from error
    if stopped is None:
        raise destroyed(node, request.sandbox_id, _ACTION, request.execution)
    with node.reading() as tx:
        return Stopped(generation=request.execution.generation, artifact=reference_of(tx, stopped.artifact_id))
