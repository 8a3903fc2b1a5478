"""Which node a sandbox is started on next (spec: generations, §9)."""

from __future__ import annotations

from flux.control.context import Control
from flux.core.control import NodeStatus
from flux.core.errors import Code, FluxError
from flux.ports.placement import Wanted
from flux.store.registry import nodes
from flux.store.registry.sandboxes import SandboxRow


def candidates(context: Control, row: SandboxRow) -> list[NodeStatus]:
    """Return the nodes that may start a sandbox, best first.

    Raises:
        FluxError: ``unavailable`` if none may: never an older artifact, never an empty sandbox.
    """
    with context.registry.reading() as tx:
        known = nodes.every(tx)
    wanted = Wanted(sandbox_id=row.id, kind=row.record.kind, confined_to=confined_to(row), local_to=row.artifact_store)
    found = context.placement.candidates(wanted, known)
    if not found:
        raise _nowhere(row, wanted, known)
    return found


def confined_to(row: SandboxRow) -> str | None:
    """Return the store id of the only node that has what a sandbox needs, ``None`` if every node can have it."""
    if row.artifact_id is not None and not row.artifact_durable:
        return row.artifact_store
    if row.record.layout == "bound" or (row.lived and row.artifact_id is None):
        return row.node_store_id  # its files are there and nowhere else
    return None


def _nowhere(row: SandboxRow, wanted: Wanted, known: list[NodeStatus]) -> FluxError:
    if wanted.confined_to is None:
        return FluxError(
            Code.UNAVAILABLE,
            f"cannot wake sandbox {row.id}: no node can run the kind {wanted.kind}; add one: fluxctl node add",
            {"reason": "NoNode", "kind": wanted.kind},
        )
    name = next((node.name for node in known if node.node_store_id == wanted.confined_to), row.node or "?")
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot wake sandbox {row.id}: what it wakes from is only on node {name}, which is lost; bring that node "
        "back, or delete the sandbox",
        {"reason": "OnLostNode", "node": name, "artifact_id": row.artifact_id},
    )
