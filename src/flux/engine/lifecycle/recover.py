"""At the start: putting right what a crash left behind (spec: speculation)."""

from __future__ import annotations

import os

from flux.core.errors import FluxError
from flux.core.paths import printable
from flux.engine.context import Context
from flux.engine.results import Recovery
from flux.engine.speculation import mend
from flux.store import changeset_index
from flux.store.changeset_index import Row


def recover(context: Context) -> Recovery:
    """Close open journals, finish transitions, remove what was never finished."""
    found = Recovery()
    with context.stores.database.reading() as tx:
        rows = changeset_index.with_intent(tx)
    if context.stores.database.created:
        _index_again(context)
    for row in rows:
        _mend(context, row, found)
    for changeset_id in context.stores.changesets.drafts():
        context.stores.changesets.delete(changeset_id)
        found.discarded.append(changeset_id)
    for name in context.stores.places.scratch():
        context.stores.places.remove_scratch(name)
    _clear_drafts(context)
    return found


def _clear_drafts(context: Context) -> None:
    """Remove what was half saved when a crash came; nobody refers to what was never published."""
    from flux.trees.layers.store import LAYERS  # only where something was ever saved is it needed at a start

    if os.path.isdir(context.stores.state.place(LAYERS)):
        context.layers.clear_drafts()


def _mend(context: Context, row: Row, found: Recovery) -> None:
    try:
        recovery = mend.mend(context, row)
    except (FluxError, OSError) as error:
        # One changeset that cannot be put right does not keep the others, or the sandbox, from their users.
        found.problems.append(f"{row.id}: {error}")
        return
    found.problems.extend(f"{row.id}: {printable(problem.path)}: {problem.reason}" for problem in recovery.problems)
    if recovery.outcome in ("rolled_back", "partial"):
        found.rolled_back.append(row.id)
    elif context.stores.changesets.exists(row.id):
        found.completed.append(row.id)
    else:
        found.discarded.append(row.id)


def _index_again(context: Context) -> None:
    """Make the index anew from the changesets' own files, when the database is a new one (spec: speculation)."""
    for changeset_id in context.stores.changesets.ids():
        try:
            record = context.stores.changesets.read(changeset_id)
        except FluxError:
            continue
        with context.stores.database.transaction() as tx:
            changeset_index.insert(tx, record, owner=None, line=None)
            changeset_index.settle(tx, record, context.moment())
