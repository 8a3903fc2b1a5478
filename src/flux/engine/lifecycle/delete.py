"""What a sandbox that is being destroyed leaves open: calls are ended, changesets rejected (spec: sandboxes)."""

from __future__ import annotations

import msgspec

from flux.core.access import SYSTEM, Actor
from flux.core.changeset import LIFE, Changeset, Event, State
from flux.core.errors import Code, FluxError
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.speculation import lookup, mend, transition
from flux.store import changeset_index
from flux.store.changeset_index import Row

_WHY = "its sandbox was deleted"


def destroyed(context: Context, sandbox: Sandbox) -> None:
    """Close what a sandbox that is being destroyed leaves open: its users' calls, its changesets. Repeatable.

    Who deletes sandboxes records that; what is rejected here is so because of it, by Flux itself.
    """
    with context.locks.deleting(sandbox.id, lambda: context.instances.kill(sandbox.id)):
        _close_changesets(context, SYSTEM, sandbox)


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
