"""Ending an execution that is not saved: stop, a host that took it along, a stale one (§3, §8)."""

from __future__ import annotations

import msgspec

from flux.core.fence import EndedAs, NodeRow
from flux.core.lifecycle import LIFE, NodeEvent
from flux.core.sandbox import Sandbox
from flux.engine.node import saving
from flux.engine.node.desk import Holding
from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import sandboxes
from flux.store.database import Transaction


def begin(tx: Transaction, row: NodeRow, mine: Holding) -> NodeRow | None:
    """Put a running row in flight; ``None`` if it is no longer as it was read."""
    written = sandboxes.update(tx, msgspec.structs.replace(row, state=LIFE.next(row.state, NodeEvent.STOP)))
    if written is not None:
        mine.take()
    return written


def finish(node: Node, sandbox: Sandbox, row: NodeRow, ended_as: EndedAs = EndedAs.STOPPED) -> Steps[NodeRow | None]:
    """Drive a stop on: end the execution, then say so. The last artifact stays current."""
    assert row.generation is not None
    node.executions.kill(sandbox, row.generation)
    yield Point.STOP_ENDED
    with node.writing() as tx:
        written = sandboxes.update(
            tx,
            msgspec.structs.replace(
                row,
                state=LIFE.next(row.state, NodeEvent.STOPPED),
                last_activity=tx.now,
                receipt=saving.stopped_receipt(row, tx.now),
            ),
        )
        if written is not None:
            saving.ends(tx, row, ended_as, None)
    yield Point.STOP_COMMITTED
    return written
