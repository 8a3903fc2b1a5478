"""Bringing one abandoned row to rest: rolled back or driven on, as the table of recoveries says (§3)."""

from __future__ import annotations

import msgspec

from flux.core.fence import NodeRow
from flux.core.lifecycle import IN_FLIGHT, NodeState, Recover, recovery_of
from flux.core.sandbox import Sandbox
from flux.engine.node import deletion, ending, rollback, saving
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node, record_of
from flux.failpoints import Point, Steps
from flux.store import sandboxes

_WHY = "the node had to start again, or could not finish"


class Taken(msgspec.Struct, frozen=True):
    """A row in flight that is the taker's own work now."""

    row: NodeRow
    sandbox: Sandbox


def mend(node: Node, sandbox_id: str) -> Steps[bool]:
    """Bring a row to rest that is in flight while nobody works on it; ``False`` if there is none such."""
    with holding(node.desk, sandbox_id) as mine:
        taken = _take(node, sandbox_id, mine)
        if taken is None:
            return False
        yield Point.RECOVER_STEP
        yield from _bring_to_rest(node, taken)
        return True


def _take(node: Node, sandbox_id: str, mine: Holding) -> Taken | None:
    with node.writing() as tx:
        row = sandboxes.row(tx, sandbox_id)
        if row is None or row.state not in IN_FLIGHT or node.desk.is_held(sandbox_id):
            return None
        taken = Taken(row, record_of(tx, sandbox_id))
        mine.take()
        return taken


def _bring_to_rest(node: Node, taken: Taken) -> Steps[None]:
    row = taken.row
    if recovery_of(row.state, artifact_named=row.named is not None) is Recover.ROLL_BACK:
        if row.state is NodeState.ACTIVATING:
            yield from rollback.undo(node, row, _WHY)
        else:
            yield from saving.undo(node, taken.sandbox, row)
    elif row.state is NodeState.SUSPENDING:
        yield from saving.finish(node, taken.sandbox, row)
    elif row.state is NodeState.STOPPING:
        yield from ending.finish(node, taken.sandbox, row)
    else:
        yield from deletion.drive(node, row)
