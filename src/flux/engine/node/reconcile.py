"""The only one who removes resources without a row: after a minimum age, and a fresh read (§8)."""

from __future__ import annotations

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.engine.node.desk import Holding, Work, holding
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.ports.executions import OwnExecution
from flux.store import fences, sandboxes

#: In these states a row's own generation may have files or processes.
_WITH_RESOURCES = frozenset(NodeState) - {NodeState.CREATED, NodeState.SUSPENDED, NodeState.GONE}


def steps(node: Node) -> Steps[list[str]]:
    """Remove the processes, mounts and files of executions that no row stands for.

    Returns:
        ``<sandbox id>/<generation>`` of each.
    """
    removed = []
    for own in node.executions.own():
        if own.age_seconds < node.settings.orphan_age_seconds:
            continue
        with holding(node.desk, own.sandbox_id, Work.SWEEP) as mine:
            row, orphaned = _look(node, own, mine)
            if not orphaned:
                continue
            if row is None:
                node.executions.remove(own.sandbox_id)
            else:
                node.executions.discard(own.sandbox_id, own.generation)
            yield Point.RECONCILE_REMOVED
            removed.append(f"{own.sandbox_id}/{own.generation}")
    return removed


def _look(node: Node, own: OwnExecution, mine: Holding) -> tuple[NodeRow | None, bool]:
    """Read afresh, and see to it that what is removed cannot start meanwhile: its generation is retired for good."""
    with node.writing() as tx:
        row = sandboxes.row(tx, own.sandbox_id)
        if row is not None and own.generation == 0:  # what belongs to the sandbox as a whole goes with its row
            return row, False
        if row is not None and row.generation == own.generation and row.state in _WITH_RESOURCES:
            return row, False
        if row is None and node.desk.is_held(own.sandbox_id):
            return row, False
        if own.generation >= 1 and fences.find(tx, own.sandbox_id).retired < own.generation:
            fences.retire(tx, own.sandbox_id, own.generation)
        if row is None:
            mine.take()  # keeps every activation of this sandbox out until it is removed
        return row, True
