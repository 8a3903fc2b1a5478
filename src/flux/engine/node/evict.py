"""Evict: delete an idle, backed-up sandbox from this node's disk; it starts again from its artifact (§8)."""

from __future__ import annotations

from flux.core.fence import NodeRow, Reason, Refusal, is_evictable
from flux.core.node import Evict
from flux.core.route import checked_generation, checked_sandbox_id
from flux.engine.node import collect, deletion
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node
from flux.engine.node.suspend import required
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, fences, sandboxes, upload_jobs
from flux.store.database import Transaction

_ACTION = "evict"


def steps(node: Node, request: Evict) -> Steps[None]:
    """Delete a sandbox from this node's disk.

    Raises:
        FluxError: ``fenced``, ``not_found``, ``illegal_state`` with ``NotEvictable``: nothing has changed.
    """
    checked_sandbox_id(request.sandbox_id)
    checked_generation(request.execution.generation)
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, request.execution)
    with holding(node.desk, request.sandbox_id) as mine:
        with node.writing() as tx:
            row = sandboxes.row(tx, request.sandbox_id)
            row = required(node, tx, row, request.sandbox_id, request.execution, _ACTION)
            if not _evictable(node, tx, row, tx.now - node.settings.evict_idle_seconds):
                refusal = _refusal(node, tx, row)
                raise node.refusal(refusal, row.sandbox_id, _ACTION, request.execution, fences.find(tx, row.sandbox_id))
            row = deletion.intend(tx, row, "evicted", mine)
        yield Point.DELETE_INTENT
        yield from deletion.drive(node, row)


def sweep(node: Node) -> Steps[list[str]]:
    """Evict what is idle for long; while the disk is too full, also what was used least recently.

    Returns:
        The ids of the evicted sandboxes.
    """
    evicted = yield from _evict_idle(node, node.clock.wall() - node.settings.evict_idle_seconds)
    if evicted:
        yield from collect.steps(node)
    while node.disk().free < node.settings.disk_free_least:
        more = yield from _evict_idle(node, node.clock.wall(), at_most=1)
        freed = yield from collect.steps(node)
        if not more and not freed:
            break
        evicted += more
    return evicted


def _evict_idle(node: Node, idle_since: float, at_most: int | None = None) -> Steps[list[str]]:
    evicted: list[str] = []
    with node.reading() as tx:
        candidates = [row.sandbox_id for row in sandboxes.rows_by_activity(tx)]
    for sandbox_id in candidates:
        if at_most is not None and len(evicted) >= at_most:
            break
        if (yield from _evict(node, sandbox_id, idle_since)):
            evicted.append(sandbox_id)
    return evicted


def _evict(node: Node, sandbox_id: str, idle_since: float) -> Steps[bool]:
    with holding(node.desk, sandbox_id) as mine:
        row = _intend(node, sandbox_id, idle_since, mine)
        if row is None:
            return False
        yield Point.DELETE_INTENT
        return (yield from deletion.drive(node, row))


def _intend(node: Node, sandbox_id: str, idle_since: float, mine: Holding) -> NodeRow | None:
    """Look again, in the transaction that records the intent."""
    with node.writing() as tx:
        row = sandboxes.row(tx, sandbox_id)
        if row is None or not _evictable(node, tx, row, idle_since):
            return None
        return deletion.intend(tx, row, "evicted", mine)


def _evictable(node: Node, tx: Transaction, row: NodeRow, idle_since: float) -> bool:
    return is_evictable(
        row,
        durable=artifact_rows.is_durable(tx, row.artifact_id),
        pinned=artifact_rows.is_pinned(tx, row.artifact_id, but_for=row.sandbox_id),
        open_job=upload_jobs.is_open(tx, row.artifact_id),
        idle_since=idle_since,
    )


def _refusal(node: Node, tx: Transaction, row: NodeRow) -> Refusal:
    durable = row.artifact_id is None or artifact_rows.is_durable(tx, row.artifact_id)
    why = "what it rests on is not confirmed by the object store" if not durable else "it is in use, or was just now"
    return Refusal(reason=Reason.NOT_EVICTABLE, message=f"the sandbox is {row.state.value}: {why}; try again later")
