"""Recovery: every row in flight to rest, every dead execution's row to ``stopped`` (§3, I13)."""

from __future__ import annotations

import msgspec

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.engine.node import ending, mend
from flux.engine.node.desk import Holding, holding
from flux.engine.node.node import Node, record_of
from flux.failpoints import Point, Steps
from flux.store import sandboxes, upload_jobs


class Recovered(msgspec.Struct, kw_only=True):
    """What recovery did, by sandbox id. ``problems``: what it could not do yet; a repetition goes on."""

    mended: list[str] = []
    stopped: list[str] = []
    problems: list[str] = []


def steps(node: Node) -> Steps[Recovered]:
    """Bring to rest what nobody works on. One sandbox that resists does not keep the others from it."""
    found = Recovered()
    with node.reading() as tx:
        in_flight = [row.sandbox_id for row in sandboxes.rows_in_flight(tx)]
    for sandbox_id in in_flight:
        try:
            if (yield from mend.mend(node, sandbox_id)):
                found.mended.append(sandbox_id)
        except Exception as error:
            found.problems.append(f"{sandbox_id}: {error}")
    yield from _stop_the_dead(node, found)
    if node.settings.uploads:
        _queue_missing(node)
        yield Point.RECOVER_STEP
    return found


def _queue_missing(node: Node) -> None:
    with node.writing() as tx:
        upload_jobs.queue_missing(tx, node.moment())


def _stop_the_dead(node: Node, found: Recovered) -> Steps[None]:
    with node.reading() as tx:
        running = [row for row in sandboxes.rows(tx) if row.state is NodeState.RUNNING]
        records = [record_of(tx, row.sandbox_id) for row in running]
    for row, sandbox in zip(running, records, strict=True):
        try:
            if node.executions.alive(sandbox, row.generation or 0):
                continue
            if (yield from _stop(node, row)):
                found.stopped.append(row.sandbox_id)
        except Exception as error:
            found.problems.append(f"{row.sandbox_id}: {error}")


def _stop(node: Node, row: NodeRow) -> Steps[bool]:
    """End an execution that died by itself or with its host; nothing happens if its row has changed since."""
    with holding(node.desk, row.sandbox_id) as mine:
        stopping = _begin(node, row, mine)
        if stopping is None:
            return False
        yield Point.STOP_BEGUN
        with node.reading() as tx:
            sandbox = record_of(tx, row.sandbox_id)
        return (yield from ending.finish(node, sandbox, stopping)) is not None


def _begin(node: Node, row: NodeRow, mine: Holding) -> NodeRow | None:
    with node.writing() as tx:
        return ending.begin(tx, row, mine)
