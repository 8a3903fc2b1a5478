"""What time does: open changesets expire, finished ones are deleted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flux.core.access import SYSTEM
from flux.core.changeset import LIFE, Changeset, Event
from flux.core.errors import Code, FluxError
from flux.engine.context import Context
from flux.engine.speculation import mend, transition
from flux.store import changeset_index
from flux.store.changeset_index import Intent, Row


def sweep(context: Context) -> None:
    """Do what is due. What somebody works on is left to the next sweep."""
    moment = context.moment()
    with context.stores.database.reading() as tx:
        due = changeset_index.due(tx, moment)
        over = changeset_index.over(tx, moment, context.settings.caps.retention_seconds)
        open_intents = [row for row in changeset_index.with_intent(tx) if row.intent is not Intent.CREATE]
    for row in open_intents:
        _alone(context, row, _settle)
    for row in due:
        _alone(context, row, _expire)
    for row in over:
        _alone(context, row, _delete)


def _alone(context: Context, row: Row, action: Callable[[Context, Row], None]) -> None:
    if not context.locks.try_changeset(row.id):
        return
    try:
        with context.stores.database.reading() as tx:
            now = changeset_index.find(tx, row.id)
        if now is not None:
            action(context, now)
    except (FluxError, OSError):
        # What is due of one changeset is no reason to refuse what was asked about another; the next sweep tries again.
        context.observer.count("sweep_failures")
    finally:
        context.locks.release_changeset(row.id)


def _settle(context: Context, row: Row) -> None:
    if row.intent is not None and row.intent is not Intent.CREATE:
        mend.mend(context, row)


def _expire(context: Context, row: Row) -> None:
    if row.intent is None:
        expire_if_due(context, row, context.stores.changesets.read(row.id))


def _delete(context: Context, row: Row) -> None:
    if row.intent is None:
        transition.delete(context, row.id)


def expire_if_due(context: Context, row: Row, record: Changeset) -> Changeset:
    """Return the record, expired if its time is over. The caller has the changeset alone."""
    over = context.moment().after(row.boot_id, row.expires_boot_ns, row.expires_at)
    if not over or not LIFE.allows(record.state, Event.EXPIRE):
        return record
    expired = msgspec.structs.replace(
        record, state=LIFE.next(record.state, Event.EXPIRE), finished_at=context.clock.wall()
    )
    transition.move(context, SYSTEM, expired)
    return expired


def refuse_expired(record: Changeset, verb: str) -> FluxError:
    """Return the error for a decision that comes too late."""
    return FluxError(
        Code.EXPIRED,
        f"cannot {verb} the changeset {record.id}: it is expired, and its staged contents are dropped; run it again",
        {"state": record.state.value},
    )
