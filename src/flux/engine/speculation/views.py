"""Reading: sandboxes, changesets, diffs, audit lines. Time is looked at first, so nothing due looks open."""

from __future__ import annotations

import msgspec

from flux.core import paths
from flux.core.access import Actor
from flux.core.audit import AuditEvent, AuditFilter
from flux.core.changeset import Changeset
from flux.core.errors import Code, FluxError
from flux.engine import ids
from flux.engine.context import Context, no_sandbox
from flux.engine.results import ChangesetDetail, FileDiff, Health, OpenFile, Page
from flux.engine.speculation import contents, lookup, sweep
from flux.store import sandboxes

LIMIT_MAX = 1000


def list_changesets(context: Context, actor: Actor, reference: str, limit: int, cursor: str | None) -> Page[Changeset]:
    """List a sandbox's changesets, newest first."""
    sweep.sweep(context)
    found = lookup.rows(context, actor, reference, _limit(limit) + 1, _number(cursor))
    kept = found[:limit]
    more = str(kept[-1].number) if len(found) > limit else None
    found_records = (lookup.readable(context, row.id) for row in kept if context.stores.changesets.exists(row.id))
    return Page(items=[record for record in found_records if record is not None], next_cursor=more)


def get_changeset(context: Context, actor: Actor, reference: str, changeset_id: str) -> ChangesetDetail:
    """Return a changeset with the changes that count."""
    sweep.sweep(context)
    row = lookup.find(context, actor, reference, changeset_id)
    return lookup.detail(context, context.stores.changesets.read(row.id))


def diff(context: Context, actor: Actor, reference: str, changeset_id: str, path: str | None) -> list[FileDiff]:
    """Return the differences of a changeset's entries."""
    sweep.sweep(context)
    row = lookup.find(context, actor, reference, changeset_id)
    record = context.stores.changesets.read(row.id)
    top = paths.ROOT if path is None else paths.normalise(path)
    changes = [change for change in lookup.effective(context, record).every() if paths.is_within(change.location, top)]
    if path is not None and not changes:
        raise _unchanged(record, path)
    with contents.opened(context, record) as source:
        return [source.diff(change) for change in changes]


def staged_file(context: Context, actor: Actor, reference: str, changeset_id: str, path: str) -> OpenFile:
    """Open the content of a file as the changeset makes it."""
    sweep.sweep(context)
    row = lookup.find(context, actor, reference, changeset_id)
    record = context.stores.changesets.read(row.id)
    wanted = paths.normalise(path)
    for change in lookup.effective(context, record).every():
        if change.location == wanted:
            with contents.opened(context, record) as source:
                return source.open_after(change)
    raise _unchanged(record, path)


def _unchanged(record: Changeset, path: str) -> FluxError:
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find {paths.printable(path)[:200]} in the changeset {record.id}: it changes nothing there",
    )


def audit(context: Context, filters: AuditFilter, limit: int, cursor: str | None) -> Page[AuditEvent]:
    """List audit lines, oldest first."""
    lines, end = context.stores.audit.read(by_id(context, filters), _limit(limit), position(context, cursor))
    return Page(items=lines, next_cursor=str(end))


def by_id(context: Context, filters: AuditFilter) -> AuditFilter:
    """Return the filters with the sandbox's id where they have its name. The log knows ids of sandboxes long gone.

    Raises:
        FluxError: ``not_found`` for what is neither.
    """
    if filters.sandbox_id is None or ids.is_sandbox(filters.sandbox_id):
        return filters
    with context.stores.database.reading() as tx:
        found = sandboxes.find(tx, filters.sandbox_id)
    if found is None:
        raise no_sandbox(filters.sandbox_id)
    return msgspec.structs.replace(filters, sandbox_id=found.id)


def position(context: Context, cursor: str | None) -> int:
    """Return the place in the audit log that a cursor names."""
    return context.stores.audit.check(_number(cursor) or 0)


def health(context: Context) -> Health:
    """Return how much there is."""
    with context.stores.database.reading() as tx:
        count = sandboxes.count(tx)
    return Health(status="ok", sandboxes=count, running=context.instances.count())


def _limit(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise FluxError(Code.INVALID, f"cannot list {limit} items: limit is 1 to {LIMIT_MAX}", {"field": "limit"})
    return limit


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 18:
        raise FluxError(
            Code.INVALID, "cannot read the list on: the cursor is not one of its own; leave it out", {"field": "cursor"}
        )
    return int(cursor)
