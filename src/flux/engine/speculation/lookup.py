"""Finding a changeset, and the part of it that counts."""

from __future__ import annotations

from collections.abc import Sequence

from flux.core import access
from flux.core.access import Actor
from flux.core.changeset import Changes, Changeset
from flux.core.errors import Code, FluxError
from flux.core.paths import from_portable, printable
from flux.engine.context import Context, no_sandbox
from flux.engine.results import ChangesetDetail
from flux.store import changeset_index, sandboxes
from flux.store.changeset_index import Intent, Row


def find(context: Context, actor: Actor, reference: str, changeset_id: str) -> Row:
    """Return the index row of a changeset of the sandbox with that id or name; a deleted one's id still counts.

    Raises:
        FluxError: ``not_found``, also where it belongs to another sandbox or the actor may not see it.
    """
    with context.stores.database.reading() as tx:
        sandbox = sandboxes.find(tx, reference)
        row = changeset_index.find(tx, changeset_id)
    sandbox_id = reference if sandbox is None else sandbox.id
    if row is None or row.sandbox_id != sandbox_id or row.intent is Intent.CREATE or not access.sees(actor, row.owner):
        raise FluxError(
            Code.NOT_FOUND,
            f"cannot find the changeset {printable(changeset_id)[:80]!r}: the sandbox {printable(reference)[:80]!r} "
            "has none with that id; list its changesets to see",
        )
    return row


def rows(context: Context, actor: Actor, reference: str, limit: int, before: int | None) -> Sequence[Row]:
    """Return a sandbox's rows, newest first.

    Raises:
        FluxError: ``not_found`` if there is neither such a sandbox nor, of a deleted one, a changeset.
    """
    with context.stores.database.reading() as tx:
        sandbox = sandboxes.find(tx, reference)
        sandbox_id = reference if sandbox is None else sandbox.id
        found = changeset_index.page(tx, sandbox_id, limit=limit, before=before)
        any_row = found or changeset_index.of_sandbox(tx, sandbox_id)
    if sandbox is not None:
        if not access.sees(actor, sandbox.owner):
            raise no_sandbox(reference)
    elif not any_row or not access.sees(actor, any_row[0].owner):
        raise no_sandbox(reference)
    return found


def detail(context: Context, record: Changeset) -> ChangesetDetail:
    """Return a record with the changes that count."""
    return ChangesetDetail(changeset=record, changes=effective(context, record))


def effective(context: Context, record: Changeset) -> Changes:
    """Return a changeset's changes; after a partial approval those that were approved."""
    return select(context.stores.changesets.read_changes(record.id), record.only)


def select(changes: Changes, only: Sequence[str] | None) -> Changes:
    """Return the changes at exactly the portable paths ``only``; what is left out counts as unchanged."""
    if only is None:
        return changes
    wanted = {from_portable(path) for path in only}
    kept = [change for change in changes.every() if change.location in wanted]
    left = sum(1 for change in changes.every() if change.location not in wanted and change.before is not None)
    return Changes.of(kept, unchanged=changes.unchanged + left)


def counts(changes: Changes) -> dict[str, int]:
    """Return how many entries are in each list."""
    return {
        "added": len(changes.added),
        "modified": len(changes.modified),
        "deleted": len(changes.deleted),
        "type_changed": len(changes.type_changed),
        "unchanged": changes.unchanged,
    }


def readable(context: Context, changeset_id: str) -> Changeset | None:
    """Return a changeset's record, ``None`` if its file is damaged: one such file must not hide or hold the others."""
    try:
        return context.stores.changesets.read(changeset_id)
    except FluxError as error:
        if error.code is not Code.INTERNAL:
            raise
        context.observer.count("changesets.damaged")
        return None
