"""Changing a changeset's state so that a crash at any instant loses nothing (spec: speculation).

The intent, with its audit line, is committed before ``meta.json`` changes; ``meta.json`` decides; the line is durable
before the intent is cleared. Whatever is left in between, ``settle`` finishes, now or after a crash.
"""

from __future__ import annotations

import msgspec

from flux.core.access import SYSTEM, Actor
from flux.core.audit import AuditEvent, AuditKind
from flux.core.changeset import LIFE, Changeset, Event, State
from flux.core.errors import Code, FluxError
from flux.engine.context import Context
from flux.store import changeset_index
from flux.store.changeset_index import Intent, Row
from flux.store.changesets import BLOBS, PREIMAGES
from flux.trees.area import TRASH

KINDS: dict[State, tuple[Intent, AuditKind]] = {
    State.APPROVED: (Intent.APPROVE, AuditKind.CHANGESET_APPROVED),
    State.REJECTED: (Intent.REJECT, AuditKind.CHANGESET_REJECTED),
    State.EXPIRED: (Intent.EXPIRE, AuditKind.CHANGESET_EXPIRED),
    State.APPLIED: (Intent.APPLY, AuditKind.CHANGESET_APPLIED),
    State.FAILED: (Intent.FAIL, AuditKind.CHANGESET_FAILED),
}

#: What a state no longer needs: rejected and expired changesets keep no contents, an applied one no blobs.
DROPPED: dict[State, tuple[str, ...]] = {
    State.REJECTED: (BLOBS, PREIMAGES),
    State.EXPIRED: (BLOBS, PREIMAGES),
    State.APPLIED: (BLOBS,),
}


def line(context: Context, actor: Actor, record: Changeset, details: dict[str, object] | None = None) -> AuditEvent:
    """Return the audit line of ``record``'s having come into its state; its id is the same whenever it is made."""
    return context.line(
        KINDS[record.state][1],
        actor,
        sandbox_id=record.sandbox_id,
        changeset=record.id,
        line_id=f"{record.id}:{record.state.value}",
        details=details,
    )


def total(record: Changeset) -> int:
    """Return how many entries a changeset changes."""
    return sum(count for kind, count in record.counts.items() if kind != "unchanged")


def begin(context: Context, record: Changeset, event: AuditEvent) -> None:
    """Note that ``record`` is about to come into its state."""
    with context.stores.database.transaction() as tx:
        changeset_index.intend(tx, record.id, KINDS[record.state][0], event)


def move(context: Context, actor: Actor, record: Changeset, details: dict[str, object] | None = None) -> None:
    """Bring a changeset into ``record.state``; the caller has it alone and knows that the move is allowed.

    Raises:
        FluxError: ``exhausted`` or ``unavailable`` with nothing changed, ``unknown_outcome`` if only the audit failed.
    """
    event = line(context, actor, record, details)
    begin(context, record, event)
    try:
        context.stores.changesets.replace(record)
    except FluxError:
        if context.stores.changesets.read(record.id).state is not record.state:
            cancel(context, record.id)
            raise
    finish(context, record, event)


def cancel(context: Context, changeset_id: str) -> None:
    """Take an intent back: what it was for did not happen."""
    record = context.stores.changesets.read(changeset_id)
    with context.stores.database.transaction() as tx:
        changeset_index.settle(tx, record, context.moment())


def finish(context: Context, record: Changeset, event: AuditEvent | None, *, settled: bool = True) -> None:
    """Do what follows a change of ``meta.json``: the audit line, dropping contents, the index if all is ``settled``.

    Raises:
        FluxError: ``unknown_outcome``; the rest is done by the next sweep, or at the next start.
    """
    try:
        if event is not None:
            context.stores.audit.append(event)
            context.observer.count(f"changeset.{record.state.value}")
        _drop(context, record)
        if settled:
            with context.stores.database.transaction() as tx:
                changeset_index.settle(tx, record, context.moment())
    except FluxError as error:
        raise FluxError(
            Code.UNKNOWN_OUTCOME,
            f"the changeset {record.id} is {record.state}, but that is not recorded everywhere ({error.message}); look "
            "at the changeset: what is missing is recorded when the cause is gone",
            {"state": record.state.value},
        ) from error
    finally:
        context.notify()


def _drop(context: Context, record: Changeset) -> None:
    """Drop the contents that nobody needs any more."""
    changesets = context.stores.changesets
    if record.state in DROPPED:
        changesets.drop(record.id, *DROPPED[record.state])
    # A revert puts kept files back by linking them: the kept names would show in the workspace as one link too many.
    if record.state is State.APPLIED and record.reverts is not None and changesets.exists(record.reverts):
        changesets.drop(record.reverts, TRASH)


def fail(context: Context, actor: Actor, record: Changeset, reason: str) -> Changeset:
    """Record that an apply did not finish."""
    failed = msgspec.structs.replace(
        record,
        state=LIFE.next(record.state, Event.FAIL),
        error=reason,
        finished_at=context.clock.wall(),
    )
    move(context, actor, failed, {"reason": reason})
    return failed


def settle(context: Context, row: Row) -> Changeset | None:
    """Finish what the intent of ``row`` began, or take it back; return the record, ``None`` if there is none any more.

    The journal of an apply, if there was one, is closed by now.
    """
    changesets = context.stores.changesets
    if row.intent is Intent.DELETE or not changesets.exists(row.id):
        changesets.delete(row.id)
        with context.stores.database.transaction() as tx:
            changeset_index.delete(tx, row.id)
        return None
    record = changesets.read(row.id)
    event = row.audit_line
    if row.intent is Intent.FAIL and record.state is State.APPROVED and event is not None:
        return fail(context, SYSTEM, record, str(event.details.get("reason", "the apply did not finish")))
    happened = event is not None and _happened(row, event, record)
    missing = event is not None and happened and not context.stores.audit.holds([event.id])
    finish(context, record, event if missing else None)
    return record


def _happened(row: Row, event: AuditEvent, record: Changeset) -> bool:
    if row.intent is Intent.CREATE:
        return True
    if row.intent is Intent.UPDATE:
        return record.reverted_by is not None and event.details.get("by") == record.reverted_by
    return event.id == f"{record.id}:{record.state.value}"


def delete(context: Context, changeset_id: str) -> None:
    """Delete a finished changeset."""
    with context.stores.database.transaction() as tx:
        changeset_index.intend(tx, changeset_id, Intent.DELETE)
    context.stores.changesets.delete(changeset_id)
    with context.stores.database.transaction() as tx:
        changeset_index.delete(tx, changeset_id)
    context.notify()


def update(context: Context, record: Changeset, event: AuditEvent | None = None) -> None:
    """Replace a record without changing its state, with an audit line if it calls for one."""
    with context.stores.database.transaction() as tx:
        changeset_index.intend(tx, record.id, Intent.UPDATE, event)
    context.stores.changesets.replace(record)
    finish(context, record, event)
