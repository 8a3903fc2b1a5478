"""Destroy: a user's kill wins against anything in flight, and is remembered for ever (§8)."""

from __future__ import annotations

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.core.node import Destroy, Destroyed
from flux.core.route import checked_sandbox_id
from flux.engine.node import deletion
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import fences, sandboxes

_ACTION = "destroy"


def steps(node: Node, request: Destroy) -> Steps[Destroyed]:
    """End everything of a sandbox; also where nothing is known of it. Idempotent.

    Raises:
        FluxError: what could not be removed; the sandbox stays ``deleting`` and a repetition goes on.
    """
    checked_sandbox_id(request.sandbox_id)
    node.check_store(request.node_store_id, request.sandbox_id, _ACTION, None)
    yield from execute(node, request.sandbox_id)
    return Destroyed(sandbox_id=request.sandbox_id)


def execute(node: Node, sandbox_id: str) -> Steps[None]:
    """Do what ``steps`` does, for an inventory too."""
    with holding(node.desk, sandbox_id) as mine:
        while True:
            row, taken = _begin(node, sandbox_id, mine)
            yield Point.DELETE_INTENT
            if row is None:
                return
            if taken:
                break
            yield Point.TEARDOWN_WAITED  # somebody else destroys it already
        # whoever worked on the row finds it taken over, undoes its own effects and leaves
        while not mine.is_alone():
            yield Point.TEARDOWN_WAITED
        yield from deletion.drive(node, row)


def _begin(node: Node, sandbox_id: str, mine: Holding) -> tuple[NodeRow | None, bool]:
    """Retire every generation and take the row over; ``False`` if another destroy has it."""
    with node.writing() as tx:
        row = sandboxes.row(tx, sandbox_id)
        if row is None:  # §8: a node without a row records the delete receipt all the same
            if fences.delete_receipt(tx, sandbox_id) is None or not fences.is_retired_for_ever(tx, sandbox_id):
                deletion.record(tx, sandbox_id, None, "destroyed")
            return None, False
        fences.retire_for_ever(tx, sandbox_id)
        if row.state is not NodeState.DELETING or row.intent != "destroyed":
            return deletion.intend(tx, row, "destroyed", mine), True
        if node.desk.is_held(sandbox_id):
            return row, False
        mine.take()
        return row, True
