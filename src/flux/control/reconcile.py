"""Inventories: a node is told what is current of all it was ever sent, and what it answers is believed (§8, §9)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flux.control import ask, kill, transitions
from flux.control.calls import Calls, Describe, Send
from flux.control.context import GONE, Control
from flux.control.transitions import Saved
from flux.core.access import SYSTEM
from flux.core.audit import AuditKind
from flux.core.control import NodeStatus
from flux.core.errors import FluxError
from flux.core.fence import Fact
from flux.core.lifecycle import ControlEvent, ControlState, NodeState
from flux.core.node import Described, Inventoried, Inventory, RowReport
from flux.failpoints import Point
from flux.store.registry import artifacts, nodes, sandboxes, starts
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import RegistryTransaction
from flux.store.registry.sandboxes import SandboxRow


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one node's inventory led to. ``answered``: whether it did at all. ``lost``: ids of stopped sandboxes."""

    answered: bool
    lost: tuple[str, ...] = ()


def reconcile(context: Control, node: NodeStatus) -> Calls[Found]:
    """Exchange inventories with a node and bring the registry up to what it says."""
    patience = context.settings.inventory_timeout_seconds
    with context.registry.reading() as tx:
        rows = sandboxes.started_at(tx, node.node_store_id)
    facts = tuple(fact for row in rows if (fact := fact_of(row, node.node_store_id)) is not None)
    try:
        described = yield Send(node.name, Describe(), patience)
        inventoried = yield Send(node.name, Inventory(node_store_id=node.node_store_id, facts=facts), patience)
    except FluxError:
        with context.registry.transaction() as tx:
            nodes.unreachable(tx, node.name)
        return Found(answered=False)
    yield Point.INVENTORY_ANSWERED
    assert isinstance(described, Described) and isinstance(inventoried, Inventoried)
    _note(context, node, described, inventoried)
    lost = _compared(context, node, rows, inventoried)
    yield Point.INVENTORY_ACCEPTED
    return Found(answered=True, lost=tuple(lost))


def fact_of(row: SandboxRow, node_store_id: str) -> Fact | None:
    """Return what a node is told of a sandbox; nothing while its next execution is being decided on.

    Endings are confirmed up to the last generation whose outcome is known.
    """
    if row.state in GONE:
        return Fact(sandbox_id=row.id, generation=max(1, row.generation), destroyed=True)
    if row.state is ControlState.RUNNING:
        return Fact(
            sandbox_id=row.id,
            generation=row.generation,
            artifact_id=row.artifact_id,
            confirmed=row.generation - 1,
        )
    if row.state is ControlState.PAUSED and row.generation > 0:
        if row.artifact_id is None and row.node_store_id == node_store_id:
            return None  # what it has is the node's tree of a generation that may be older than the last one minted
        return Fact(
            sandbox_id=row.id,
            generation=row.generation,
            artifact_id=row.artifact_id,
            confirmed=row.generation,
        )
    return None


def _note(context: Control, node: NodeStatus, described: Described, inventoried: Inventoried) -> None:
    """Take note of the node itself, of its artifacts, and of what it has destroyed."""
    with context.registry.transaction() as tx:
        nodes.seen(tx, node.name, described)
        for held in inventoried.artifacts:
            artifacts.report(tx, held)
            if held.state == "durable":
                sandboxes.made_durable(tx, held.id)
    with context.registry.reading() as tx:
        open_starts = [
            start
            for sandbox_id in inventoried.done
            for start in starts.of(tx, sandbox_id)
            if start.node_store_id == node.node_store_id and not start.acknowledged
        ]
    for start in open_starts:
        kill.acknowledge(context, start.sandbox_id, start.node_store_id)


def _compared(context: Control, node: NodeStatus, rows: Sequence[SandboxRow], inventoried: Inventoried) -> list[str]:
    """Find the sandboxes that the registry takes for running and the node does not (§6: stopped)."""
    reports = {held.sandbox_id: held for held in inventoried.rows}
    lost = []
    for row in rows:
        if row.state is not ControlState.RUNNING or row.node_store_id != node.node_store_id:
            continue
        held = reports.get(row.id)
        if held is not None and not _is_over(held, row):
            continue
        saved = _saved(row, held)
        event = ControlEvent.LOST if saved is None else ControlEvent.PAUSED
        if transitions.rest(context, row, event, saved, stopped=saved is None) is not None and saved is None:
            context.audit(AuditKind.SANDBOX_LOST, SYSTEM, row.id, {"generation": row.generation, "node": node.name})
            lost.append(row.id)
    return lost


def _is_over(held: RowReport, row: SandboxRow) -> bool:
    """Tell whether the execution that the registry takes for running rests on its node, or is gone from there."""
    if held.state is NodeState.GONE:
        return True
    if (held.generation, held.pod_uid) != (row.generation, row.pod_uid):
        return False
    return held.state in (NodeState.STOPPED, NodeState.SUSPENDED)


def _saved(row: SandboxRow, held: RowReport | None) -> Saved | None:
    if held is not None and held.state is NodeState.SUSPENDED and held.artifact is not None:
        return Saved(generation=row.generation, artifact=held.artifact)
    return ask.saved_of(row, () if held is None else held.ended)


def adopt_artifact(tx: RegistryTransaction, row: SandboxRow) -> None:
    """Make the artifact known that an adopted sandbox rests on."""
    if row.artifact_id is None or row.artifact_digest is None:
        return
    artifacts.add(
        tx,
        ArtifactRow(
            id=row.artifact_id,
            digest=row.artifact_digest,
            sandbox_id=row.id,
            owner=row.owner,
            generation=row.artifact_generation,
            kind="suspend",
            node=row.node,
            node_store_id=row.node_store_id,
            durable=row.artifact_durable,
            created_at=tx.now,
            record=row.sandbox,
        ),
    )
