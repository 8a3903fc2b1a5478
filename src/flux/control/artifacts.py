"""Artifacts as the control plane knows them: list, delete, verify, collect (spec: generations, §6)."""

from __future__ import annotations

from flux.control.context import Control
from flux.core import access
from flux.core.access import Actor
from flux.core.control import ArtifactStatus, Collected
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.store.registry import artifacts, sandboxes
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import RegistryTransaction


def every(context: Control, actor: Actor, sandbox: str | None = None) -> list[ArtifactStatus]:
    """List artifacts, newest first: of one sandbox, or of all that the actor sees."""
    of = None if sandbox is None else context.find(actor, sandbox).id
    with context.registry.reading() as tx:
        found = artifacts.every(tx) if of is None else artifacts.of_sandbox(tx, of)
        return [_status(tx, row) for row in found if access.sees(actor, row.owner)]


def get(context: Control, actor: Actor, reference: str) -> ArtifactStatus:
    """Return an artifact."""
    with context.registry.reading() as tx:
        return _status(tx, _found(tx, actor, reference))


def delete(context: Control, actor: Actor, reference: str) -> ArtifactStatus:
    """Forget a snapshot."""
    with context.registry.transaction() as tx:
        row = _found(tx, actor, reference)
        artifacts.lock(tx, row.id)  # whoever starts a sandbox from it right now does so first, or not at all
        if row.kind != "snapshot":
            raise FluxError(
                Code.NOT_APPLICABLE,
                f"cannot delete the artifact {row.id}: a pause made it, and it goes with its sandbox; name a snapshot",
            )
        resting = sandboxes.resting_on(tx, row.id)
        if resting:
            raise FluxError(
                Code.CONFLICT,
                f"cannot delete the snapshot {row.id}: sandbox {resting[0]} wakes from it; delete that first",
                {"sandboxes": resting[:10]},
            )
        status = _status(tx, row)
        artifacts.delete(tx, row.id)
        return status


def forget(context: Control, actor: Actor, reference: str) -> ArtifactStatus:
    """Forget a snapshot also where sandboxes rest on it: then it is an artifact like any other, and goes after them."""
    with context.registry.transaction() as tx:
        found = _found(tx, actor, reference)
        row = artifacts.lock(tx, found.id)
        if row is None or row.kind != "snapshot":
            raise artifacts.none(reference)
        status = _status(tx, row)
        if sandboxes.resting_on(tx, row.id):
            artifacts.release(tx, row.id)
        else:
            artifacts.delete(tx, row.id)
        return status


def verify(context: Control, actor: Actor, reference: str) -> ArtifactStatus:
    """Hash every part of an artifact."""
    status = get(context, actor, reference)
    if context.artifacts is None:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot verify the artifact {status.id}: this process keeps no artifacts; ask its node",
        )
    context.artifacts.verify(ArtifactReference(id=status.id, digest=status.digest, durable=status.durable))
    return status


def collect(context: Control) -> Collected:
    """Remove from the object store what nothing refers to any more."""
    if context.artifacts is None:
        raise FluxError(Code.NOT_APPLICABLE, "cannot collect: there is no object store; set one in the configuration")
    return context.artifacts.collect(lambda: needed(context))


def needed(context: Control) -> set[str]:
    """Return the ids of all artifacts that may still be restored from (§6, I7).

    What a sandbox rests on, every snapshot, and the predecessors of what is not durable yet.
    """
    with context.registry.reading() as tx:
        known = {row.id: row for row in artifacts.every(tx)}
        found = {row.id for row in known.values() if row.kind == "snapshot" or sandboxes.resting_on(tx, row.id)}
    waiting = list(found)
    while waiting:
        row = known.get(waiting.pop())
        if row is not None and not row.durable and row.parent is not None and row.parent not in found:
            found.add(row.parent)
            waiting.append(row.parent)
    return found


def shown(row: ArtifactRow, *, current: bool) -> ArtifactStatus:
    """Return a row as its owner sees it."""
    return ArtifactStatus(
        id=row.id,
        digest=row.digest,
        sandbox_id=row.sandbox_id,
        generation=row.generation,
        kind=row.kind,
        created_at=row.created_at,
        name=row.name,
        node=row.node,
        durable=row.durable,
        size=row.size,
        stored=row.stored,
        current=current,
        error=row.error,
    )


def _status(tx: RegistryTransaction, row: ArtifactRow) -> ArtifactStatus:
    return shown(row, current=row.sandbox_id in sandboxes.resting_on(tx, row.id))


def _found(tx: RegistryTransaction, actor: Actor, reference: str) -> ArtifactRow:
    row = artifacts.find(tx, reference, None if access.sees_all(actor) else actor.key_id)
    if row is None or not access.sees(actor, row.owner):
        raise artifacts.none(reference)
    return row
