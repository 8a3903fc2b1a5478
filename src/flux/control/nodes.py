"""Nodes: added by address, looked at, and forgotten by an operator (spec: generations, §9)."""

from __future__ import annotations

import re

from flux.control import transitions
from flux.control.calls import Calls, Describe, Send
from flux.control.context import GONE, Control
from flux.core.access import SYSTEM, Actor
from flux.core.audit import AuditKind
from flux.core.control import NodeStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlEvent, ControlState
from flux.core.node import Described
from flux.core.paths import printable
from flux.store.registry import nodes, sandboxes
from flux.store.registry.database import RegistryTransaction
from flux.store.registry.sandboxes import SandboxRow

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: The address of the node in this process.
LOCAL_ADDRESS = "local"


def add(context: Control, name: str, address: str) -> Calls[NodeStatus]:
    """Register a node after asking it who it is. One that was forgotten comes back by this, and is reconciled."""
    if not _NAME.fullmatch(name):
        raise FluxError(
            Code.INVALID,
            f"cannot name a node {printable(name)[:80]!r}: it has 1 to 63 letters, digits, dots, dashes or underscores",
            {"field": "name"},
        )
    try:
        described = yield Send(name, Describe(address=address), context.settings.inventory_timeout_seconds)
    except FluxError as error:
        # To ask a node who it is changes nothing, so there is no outcome to be unsure of.
        if error.code is not Code.UNKNOWN_OUTCOME:
            raise
        why = error.message.partition(f"{printable(address)}: ")[2].partition("; the control plane asks")[0]
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot add the node {name!r}: {why or 'it did not say who it is'}; check that {printable(address)} is "
            "its [node] listen, and that the token file is a copy of its node.token",
            {"reason": "NodeUnknown"},
        ) from error
    assert isinstance(described, Described)
    with context.registry.transaction() as tx:
        _free(tx, name, described.node_store_id)
        nodes.insert(tx, name, address, described)
        found = nodes.find(tx, name)
    assert found is not None
    return found


def _free(tx: RegistryTransaction, name: str, node_store_id: str) -> None:
    """Make room for a node whose name, or whose store, is that of a forgotten one."""
    for known in nodes.every(tx):
        if known.forgotten_at is None:
            continue
        if known.node_store_id == node_store_id:
            nodes.delete(tx, known.name)
        elif known.name == name:
            nodes.rename(tx, name, f"{name}~{known.node_store_id[:8]}")


def register_local(context: Control) -> Calls[NodeStatus | None]:
    """Make sure that the node in this process is registered; its store may be a new one under the old name."""
    if context.local is None:
        return None
    described = yield Send(context.local, Describe())
    assert isinstance(described, Described)
    with context.registry.reading() as tx:
        known = nodes.find(tx, context.local)
    if known is not None and known.node_store_id == described.node_store_id and known.kinds == described.kinds:
        return known
    if known is not None and known.node_store_id != described.node_store_id and known.forgotten_at is None:
        forget(context, SYSTEM, context.local)  # the state directory lost its node's store: that node is no more
    with context.registry.transaction() as tx:
        if known is not None and known.node_store_id == described.node_store_id:
            nodes.seen(tx, context.local, described)
        else:
            _free(tx, context.local, described.node_store_id)
            nodes.insert(tx, context.local, LOCAL_ADDRESS, described)
        return nodes.find(tx, context.local)


def every(context: Control) -> list[NodeStatus]:
    """List all nodes, by name."""
    with context.registry.reading() as tx:
        return nodes.every(tx)


def get(context: Control, name: str) -> NodeStatus:
    """Return a node."""
    with context.registry.reading() as tx:
        found = nodes.find(tx, name)
    if found is None:
        raise none(name)
    return found


def forget(context: Control, actor: Actor, name: str) -> NodeStatus:
    """Declare everything on a node lost: the one thing that lets a sandbox move on without the node's word (§9).

    A generation is burned for each sandbox that was there, so that a node which returns ends its execution as stale.
    """
    node = get(context, name)
    with context.registry.transaction() as tx:
        nodes.forget(tx, name)
        routed = [row.id for row in sandboxes.routed_to(tx, node.node_store_id)]
    for sandbox_id in routed:
        lost = _lose(context, sandbox_id, node.node_store_id)
        if lost is not None:
            context.changed(sandbox_id)
            context.audit(AuditKind.SANDBOX_LOST, actor, sandbox_id, {"generation": lost.generation, "node": name})
    return get(context, name)


def _lose(context: Control, sandbox_id: str, node_store_id: str) -> SandboxRow | None:
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, sandbox_id)
        if row is None or row.node_store_id != node_store_id or row.state in GONE:
            return None
        if row.state is ControlState.PAUSED:
            sandboxes.write(tx, row, generation=row.generation + 1)
            return None
        return transitions.move(
            tx,
            row,
            ControlEvent.LOST,
            generation=row.generation + 1,
            stopped=row.lived,
            address="",
            credential="",
            request=None,
            driver=None,
            failure=None,
        )


def none(name: str) -> FluxError:
    """Return the error for a node that is not there."""
    return FluxError(
        Code.NOT_FOUND, f"cannot find the node {printable(name)[:80]!r}: there is none of that name; list them to see"
    )
