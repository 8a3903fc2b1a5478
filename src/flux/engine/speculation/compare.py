"""Changesets of one sandbox side by side (spec: speculation)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flux.core import paths
from flux.core.access import Actor
from flux.core.changeset import Change, Entry
from flux.core.errors import Code, FluxError
from flux.engine.context import Context
from flux.engine.results import ComparedEntry, Comparison
from flux.engine.speculation import lookup

_MOST = 16


def compare(context: Context, actor: Actor, reference: str, changesets: Sequence[str]) -> Comparison:
    """Return what each changeset makes of each path that one of them changes."""
    if not 2 <= len(set(changesets)) == len(changesets) <= _MOST:
        raise FluxError(Code.INVALID, f"cannot compare: name 2 to {_MOST} different changesets of the sandbox")
    records = []
    table: dict[str, dict[str, Change]] = {}
    for changeset_id in changesets:
        row = lookup.find(context, actor, reference, changeset_id)
        record = context.stores.changesets.read(row.id)
        records.append(record)
        for change in lookup.effective(context, record).every():
            table.setdefault(change.location, {})[row.id] = change
    entries = [_entry(path, table[path], len(records)) for path in sorted(table)]
    return Comparison(changesets=records, entries=entries)


def _entry(path: str, by_changeset: dict[str, Change], count: int) -> ComparedEntry:
    text, encoded = paths.to_json(path)
    after = {changeset_id: change.after for changeset_id, change in by_changeset.items()}
    results = {_essence(entry) for entry in after.values()}
    return ComparedEntry(
        path=text,
        path_base64=encoded,
        kinds={changeset_id: change.kind for changeset_id, change in by_changeset.items()},
        after=after,
        same=len(results) == 1 and len(after) == count,
    )


def _essence(entry: Entry | None) -> bytes:
    """Return what makes two results the same: all but the time and the number of the hard-link group."""
    return msgspec.json.encode(entry and msgspec.structs.replace(entry, mtime_ns=0, link_group=None))
