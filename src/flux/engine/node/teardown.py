"""Teardown: end one generation; after the answer it never starts on this node (§7)."""

from __future__ import annotations

import msgspec

from flux.core.errors import FluxError
from flux.core.fence import NodeRow, Reason, Teardown, tear_down
from flux.core.lifecycle import IN_FLIGHT
from flux.core.node import ArtifactReference, Suspended, TearDown, TornDown
from flux.core.receipts import read_rollback
from flux.core.route import checked_generation, checked_sandbox_id
from flux.engine.node import mend, suspend
from flux.engine.node.node import Node, reference_of
from flux.failpoints import Point, Steps
from flux.store import fences, sandboxes
from flux.store.database import Transaction

_ACTION = "tear down"
#: The row has changed since the decision: it is made anew.
_CHANGED = frozenset({Reason.ROW_BUSY.value, Reason.NOT_RUNNING.value, Reason.STALE_GENERATION.value})
#: The outcomes that name the artifact which the row rests on.
_WITH_ARTIFACT = frozenset({Teardown.SUSPENDED, Teardown.ROLLED_BACK})


class _Decision(msgspec.Struct, frozen=True):
    """What a teardown means now, with its answer. ``abandoned``: in flight, and nobody works on it."""

    outcome: Teardown
    answer: TornDown
    abandoned: bool


def steps(node: Node, request: TearDown) -> Steps[TornDown]:
    """End one generation.

    Returns:
        A row of §7's table; ``pending`` means: ask again.

    Raises:
        FluxError: the execution could not be saved; it runs on, and its generation is retired all the same.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_generation(request.execution.generation)
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, request.execution)
    while True:
        decision = _decide(node, request)
        yield Point.TEARDOWN_RETIRED
        if decision.outcome is Teardown.SUSPEND:
            saved = yield from _suspend(node, request)
            if saved is not None:
                return _suspended(node, request, saved)
            continue
        if decision.abandoned and (yield from mend.mend(node, request.sandbox_id)):
            continue
        return decision.answer


def _decide(node: Node, request: TearDown) -> _Decision:
    """Retire the generation, first and durably, whatever is known of it here; then decide."""
    sandbox_id, generation = request.sandbox_id, request.execution.generation
    with node.writing() as tx:
        if fences.find(tx, sandbox_id).retired < generation:
            fences.retire(tx, sandbox_id, generation)
        row = sandboxes.row(tx, sandbox_id)
        outcome = tear_down(row, None if row is None else read_rollback(row.receipt), request.execution)
        abandoned = row is not None and row.state in IN_FLIGHT and node.is_abandoned(row)
        return _Decision(outcome, _answer(tx, sandbox_id, outcome, row), abandoned)


def _answer(tx: Transaction, sandbox_id: str, outcome: Teardown, row: NodeRow | None) -> TornDown:
    artifact: ArtifactReference | None = None
    if row is not None and outcome in _WITH_ARTIFACT:
        artifact = reference_of(tx, row.artifact_id)
    # a cancelled activation sees that its generation is retired, and rolls itself back (§5.4)
    told = Teardown.PENDING if outcome is Teardown.CANCEL else outcome
    fence = fences.find(tx, sandbox_id)
    return TornDown(outcome=told, artifact=artifact, ended=fence.ended, floor=fence.floor)


def _suspend(node: Node, request: TearDown) -> Steps[Suspended | None]:
    """Save the execution; ``None`` if the row is no longer as it was."""
    try:
        return (yield from suspend.execute(node, request.sandbox_id, request.execution))
    except FluxError as error:
        if error.details.get("reason") in _CHANGED:
            return None
        raise


def _suspended(node: Node, request: TearDown, saved: Suspended) -> TornDown:
    with node.reading() as tx:
        fence = fences.find(tx, request.sandbox_id)
    return TornDown(
        outcome=Teardown.SUSPENDED,
        artifact=saved.artifact,
        new_job=saved.new_job,
        ended=fence.ended,
        floor=fence.floor,
    )
