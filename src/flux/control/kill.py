"""Kill: the tombstone first, then everywhere a Start was ever sent; it wins over whatever is under way (§8, §9)."""

from __future__ import annotations

from typing import Any

from flux.control import transitions
from flux.control.calls import Calls, Nap, Send
from flux.control.context import GONE, Control, Deadline, status
from flux.core.access import SYSTEM, Actor
from flux.core.audit import AuditKind
from flux.core.control import SandboxStatus
from flux.core.errors import FluxError
from flux.core.lifecycle import ControlEvent, ControlState
from flux.core.node import Destroy
from flux.failpoints import Point
from flux.store.registry import artifacts, idempotency, nodes, sandboxes, starts
from flux.store.registry.database import RegistryTransaction
from flux.store.registry.sandboxes import SandboxRow
from flux.store.registry.starts import Start


def delete(context: Control, actor: Actor, reference: str) -> Calls[SandboxStatus]:
    """Delete a sandbox; see ``ControlPlane.delete_sandbox``."""
    row = context.find(actor, reference)
    yield from forever(context, row.id, actor)
    return status(context.row(row.id) or row)


def forever(context: Control, sandbox_id: str, actor: Actor | None = None) -> Calls[None]:
    """End everything of a sandbox: it is gone for its users at once, and on each node as soon as that answers.

    ``actor``: for the record; a sandbox whose creation failed was never there.
    """
    buried = _bury(context, sandbox_id)
    if buried is None:
        return
    if actor is not None:
        details: dict[str, Any] = {"reason": "time-out"} if actor is SYSTEM else {}
        context.audit(AuditKind.SANDBOX_DELETE, actor, sandbox_id, details)
    yield Point.KILL_RECORDED
    yield from finish(context, sandbox_id, Deadline(context.clock, context.settings.kill_timeout_seconds))


def _bury(context: Control, sandbox_id: str) -> SandboxRow | None:
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, sandbox_id)
        if row is None or row.state in GONE:
            return None
        idempotency.delete_of(tx, sandbox_id)
        buried = transitions.move(
            tx, row, ControlEvent.KILL, name=None, request=None, credential="", address="", failure=None
        )
    context.changed(sandbox_id)
    return buried


def finish(context: Control, sandbox_id: str, deadline: Deadline) -> Calls[bool]:
    """Tell every node that may have something of a killed sandbox, until the deadline; return whether all is done."""
    while True:
        with context.registry.reading() as tx:
            waiting = _unacknowledged(tx, sandbox_id)
        for start in waiting:
            yield from _destroy(context, start, deadline)
        if _closed(context, sandbox_id):
            yield Point.KILL_COMMITTED
            return True
        if deadline.is_over or not waiting:
            return False
        yield Nap(min(context.settings.nap_seconds, deadline.left_seconds))


def _unacknowledged(tx: RegistryTransaction, sandbox_id: str) -> list[Start]:
    forgotten = {node.node_store_id for node in nodes.every(tx) if node.forgotten_at is not None}
    found = starts.of(tx, sandbox_id)
    return [start for start in found if not start.acknowledged and start.node_store_id not in forgotten]


def _destroy(context: Control, start: Start, deadline: Deadline) -> Calls[None]:
    request = Destroy(sandbox_id=start.sandbox_id, node_store_id=start.node_store_id)
    try:
        yield Send(start.node, request, max(deadline.left_seconds, context.settings.nap_seconds))
    except FluxError:
        yield Point.KILL_ANSWERED  # nobody knows, or not yet: it is asked again, and by every inventory
        return
    yield Point.KILL_ANSWERED
    acknowledge(context, start.sandbox_id, start.node_store_id)


def acknowledge(context: Control, sandbox_id: str, node_store_id: str) -> None:
    """Note that nothing of a killed sandbox is left on a node; when that was the last one, the tombstone goes too."""
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, sandbox_id)
        if row is not None and row.state in GONE:
            starts.acknowledge(tx, sandbox_id, node_store_id)
            _close(tx, row)


def _closed(context: Control, sandbox_id: str) -> bool:
    row = context.row(sandbox_id)
    if row is None or row.state is ControlState.KILLED:
        return True
    with context.registry.reading() as tx:
        if _unacknowledged(tx, sandbox_id):
            return False
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, sandbox_id)
        return row is None or _close(tx, row)


def _close(tx: RegistryTransaction, row: SandboxRow) -> bool:
    """End a kill that every node has acknowledged. What a forgotten node may still have, keeps the tombstone."""
    if _unacknowledged(tx, row.id):
        return False
    for known in artifacts.of_sandbox(tx, row.id):
        if known.kind == "suspend" and sandboxes.resting_on(tx, known.id) in ([], [row.id]):
            artifacts.delete(tx, known.id)
    if all(start.acknowledged for start in starts.of(tx, row.id)):
        sandboxes.delete(tx, row.id)
    elif row.state is ControlState.KILLING:
        transitions.move(tx, row, ControlEvent.KILLED)
    return True
