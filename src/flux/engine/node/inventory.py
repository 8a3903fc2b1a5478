"""Inventory: what the control plane knows, taken into account; what this node has, reported (§8)."""

from __future__ import annotations

from flux.core.errors import FluxError
from flux.core.fence import EndedAs, Fact, NodeRow, Reconcile, reconcile
from flux.core.lifecycle import NodeState
from flux.core.node import ArtifactReport, Described, Inventoried, Inventory, Listed, RowReport
from flux.core.route import GENERATION_MAX
from flux.engine.node import deletion, destroy, ending
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node, record_of, reference_of
from flux.failpoints import Point, Steps
from flux.store import artifact_rows, endings, fences, sandboxes, upload_jobs
from flux.store.artifact_rows import ArtifactRow
from flux.store.database import Transaction


def steps(node: Node, request: Inventory) -> Steps[Inventoried]:
    """Take facts into account one after the other; what one of them asks for may fail, and is asked for again.

    Returns:
        All rows and artifacts; sandboxes of which only endings are left too, as ``gone``; the ids of the sandboxes
        that are destroyed here.
    """
    node.check_store(request.node_store_id, "", "take the inventory", None)
    done: list[str] = []
    for fact in request.facts:
        try:
            if (yield from _take(node, fact)):
                done.append(fact.sandbox_id)
        except FluxError:
            continue  # the control plane repeats every fact until it finds it true
    asked = [fact.sandbox_id for fact in request.facts]
    rows, artifacts = _report(node, asked)
    return Inventoried(rows=rows, artifacts=artifacts, done=tuple(done))


def _take(node: Node, fact: Fact) -> Steps[bool]:
    """Take one fact into account; tell whether it was that of a destroyed sandbox, of which nothing is left."""
    if fact.destroyed:
        yield from destroy.execute(node, fact.sandbox_id)
        _confirm(node, fact)
        yield Point.INVENTORY_ACCEPTED
        return True
    if _confirm(node, fact):
        yield Point.INVENTORY_ACCEPTED
    with holding(node.desk, fact.sandbox_id) as mine:
        row, decision = _decide(node, fact, mine)
        if row is None or decision is Reconcile.KEEP:
            return False
        if decision is Reconcile.DELETE_STALE:
            yield Point.DELETE_INTENT
            yield from deletion.drive(node, row)
        else:  # §9: a stale execution is ended, and not uploaded
            yield Point.STOP_BEGUN
            with node.reading() as tx:
                sandbox = record_of(tx, fact.sandbox_id)
            yield from ending.finish(node, sandbox, row, EndedAs.SUPERSEDED)
        return False


def _confirm(node: Node, fact: Fact) -> bool:
    """Forget the endings that the control plane has taken note of."""
    with node.writing() as tx:
        confirmed = GENERATION_MAX if fact.destroyed else fact.confirmed
        return endings.confirm(tx, fact.sandbox_id, confirmed) > 0


def _decide(node: Node, fact: Fact, mine: Holding) -> tuple[NodeRow | None, Reconcile]:
    """Decide and record the intent; a stale generation is retired at once."""
    with node.writing() as tx:
        row = sandboxes.row(tx, fact.sandbox_id)
        if row is None:
            return None, Reconcile.KEEP
        decision = reconcile(row, fact)
        if decision is Reconcile.DELETE_STALE:
            return deletion.intend(tx, row, "stale", mine), decision
        if decision is Reconcile.END_STALE and row.generation is not None:
            fences.retire(tx, fact.sandbox_id, row.generation)
            return ending.begin(tx, row, mine), decision
        return row, Reconcile.KEEP


def listed(node: Node) -> Listed:
    """Return every row and artifact."""
    rows, artifacts = _report(node, None)
    return Listed(rows=rows, artifacts=artifacts)


def described(node: Node) -> Described:
    """Return which node this is."""
    disk = node.disk()
    with node.reading() as tx:
        running = sandboxes.count(tx)
    settings = node.settings
    return Described(
        node_store_id=node.store_id,
        kinds=settings.kinds,
        address=settings.address,
        disk_total=disk.total,
        disk_free=disk.free,
        running=running,
        version=settings.version,
    )


def _report(node: Node, asked: list[str] | None) -> tuple[tuple[RowReport, ...], tuple[ArtifactReport, ...]]:
    with node.reading() as tx:
        rows = [_row_report(tx, row) for row in sandboxes.rows(tx)]
        here = {row.sandbox_id for row in rows}
        if asked is not None:
            gone = sorted({*asked, *endings.unconfirmed(tx)} - here)
            rows += [_gone_report(tx, sandbox_id) for sandbox_id in gone]
        artifacts = [(row, upload_jobs.error_of(tx, row.id)) for row in artifact_rows.every(tx)]
    return tuple(rows), tuple(_artifact_report(node, row, error) for row, error in artifacts)


def _row_report(tx: Transaction, row: NodeRow) -> RowReport:
    fence = fences.find(tx, row.sandbox_id)
    return RowReport(
        sandbox_id=row.sandbox_id,
        state=row.state,
        version=row.version,
        floor=fence.floor,
        generation=row.generation,
        pod_uid=row.pod_uid,
        artifact=reference_of(tx, row.artifact_id),
        ended=fence.ended,
        last_activity=row.last_activity,
    )


def _gone_report(tx: Transaction, sandbox_id: str) -> RowReport:
    fence = fences.find(tx, sandbox_id)
    return RowReport(sandbox_id=sandbox_id, state=NodeState.GONE, version=0, floor=fence.floor, ended=fence.ended)


def _artifact_report(node: Node, row: ArtifactRow, error: str | None) -> ArtifactReport:
    return ArtifactReport(
        id=row.id,
        sandbox_id=row.sandbox_id,
        generation=row.generation,
        digest=row.digest,
        state=row.state,
        kind=row.kind,
        size=row.size,
        stored=row.stored,
        local=node.artifacts.has(row.id),
        created_at=row.created_at,
        error=error,
    )
