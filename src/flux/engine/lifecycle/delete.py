"""Deleting sandboxes: in every state, leaving nothing (spec: sandboxes)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import msgspec

from flux.core.access import SYSTEM, Actor
from flux.core.audit import AuditKind
from flux.core.changeset import LIFE, Changeset, Event, State
from flux.core.errors import Code, FluxError
from flux.core.node import Destroy
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.speculation import lookup, mend, transition
from flux.store import changeset_index
from flux.store.changeset_index import Row

_WHY = "its sandbox was deleted"
_actor: ContextVar[Actor] = ContextVar("destroying_actor", default=SYSTEM)


def delete_sandbox(context: Context, actor: Actor, reference: str) -> Sandbox:
    """Delete a sandbox, whether it runs or not."""
    sandbox = context.known(actor, reference)
    _destroy(context, actor, sandbox)
    return sandbox


def end(context: Context, sandbox: Sandbox) -> None:
    """Delete a sandbox whose time-out has come."""
    with suppress(FluxError):  # the disk is in trouble: the next sweep tries again
        _destroy(context, SYSTEM, sandbox)


def _destroy(context: Context, actor: Actor, sandbox: Sandbox) -> None:
    with on_behalf_of(actor):
        context.node.destroy(Destroy(sandbox_id=sandbox.id, node_store_id=context.node.store_id))


@contextmanager
def on_behalf_of(actor: Actor) -> Iterator[None]:
    """Let whatever this block's thread destroys be recorded as done by ``actor``."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def destroyed(context: Context, sandbox: Sandbox) -> None:
    """Close what a sandbox that is being destroyed leaves open: its users' calls, its changesets. Repeatable."""
    actor = _actor.get()
    with context.locks.deleting(sandbox.id, lambda: context.instances.kill(sandbox.id)):
        _close_changesets(context, actor, sandbox)
    if sandbox.generation:  # one that never ran was never there
        context.stores.audit.append(
            context.line(AuditKind.SANDBOX_DELETE, actor, sandbox_id=sandbox.id, details=_reason(actor))
        )


def _reason(actor: Actor) -> dict[str, object]:
    return {"reason": "time-out"} if actor is SYSTEM else {}


def _close_changesets(context: Context, actor: Actor, sandbox: Sandbox) -> None:
    with context.stores.database.reading() as tx:
        rows = changeset_index.of_sandbox(tx, sandbox.id)
    for row in rows:
        _wait_for(context, row)
        try:
            _close(context, actor, sandbox, row)
        finally:
            context.locks.release_changeset(row.id)


def _wait_for(context: Context, row: Row) -> None:
    """Take a changeset, after the request that has it; that one ends soon, as its sandbox is being deleted."""
    if not context.locks.take_changeset(row.id, context.settings.lock_wait_seconds):
        raise FluxError(
            Code.CONFLICT, f"cannot delete the sandbox: a request is still working on its changeset {row.id}; try again"
        )


def _close(context: Context, actor: Actor, sandbox: Sandbox, row: Row) -> None:
    if row.intent is not None and sandbox.layout == "managed":
        transition.settle(context, row)  # what an apply did to its tree goes with the tree
    elif row.intent is not None:
        mend.mend(context, row)
    if not context.stores.changesets.exists(row.id):
        return
    record = lookup.readable(context, row.id)
    if record is None:  # no apply was under way, or mending it would have said so: there is nothing to take back
        transition.delete(context, row.id)
        return
    if LIFE.allows(record.state, Event.REJECT):
        now = context.clock.wall()
        transition.move(
            context,
            actor,
            msgspec.structs.replace(
                record,
                state=LIFE.next(record.state, Event.REJECT),
                decided_by=actor.name,
                decided_at=now,
                finished_at=now,
                comment=_WHY,
            ),
            {"comment": _WHY},
        )
    elif record.state in (State.APPLIED, State.FAILED):
        _drop_kept(context, record)


def _drop_kept(context: Context, record: Changeset) -> None:
    """Drop what was kept for a revert, or for a look at a failure; the record stays for its time."""
    context.stores.changesets.drop(record.id, "area", "trash", "trash.new", "blobs", "preimages")
    if record.revertible:
        transition.update(context, msgspec.structs.replace(record, revertible=False, revertible_reason=_WHY))
