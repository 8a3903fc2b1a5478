"""Repeating a changeset's command on the current base (spec: speculation)."""

from __future__ import annotations

import msgspec

from flux.core.access import Actor
from flux.core.changeset import LIFE, Event
from flux.core.errors import Code, FluxError
from flux.core.requests import Decide
from flux.engine.context import Context
from flux.engine.results import ChangesetDetail
from flux.engine.speculation import decide, kept_request, lookup, run, sweep, transition


def rerun(context: Context, actor: Actor, reference: str, changeset_id: str, request: Decide) -> ChangesetDetail:
    """Run the command again; the new changeset supersedes the old one, which is rejected if it is still open.

    Raises:
        FluxError: ``conflict`` if it comes from no command or was superseded before, and what ``speculate`` raises.
    """
    sweep.sweep(context)
    comment = decide.checked_comment(request.comment)
    row = lookup.find(context, actor, reference, changeset_id)
    with context.locks.changeset(row.id):
        old = context.stores.changesets.read(row.id)
        kept = context.stores.changesets.read_request(old.id)
        if kept is None:
            raise FluxError(
                Code.CONFLICT, f"cannot run the changeset {old.id} again: it is an inverse; revert the changeset again"
            )
        if old.superseded_by is not None:
            raise FluxError(
                Code.CONFLICT,
                f"cannot run the changeset {old.id} again: {old.superseded_by} supersedes it; run that again",
                {"reason": "superseded", "superseded_by": old.superseded_by},
            )
        made = run.speculate(context, actor, old.sandbox_id, kept_request.decode(kept), supersedes=old.id)
        superseded = msgspec.structs.replace(old, superseded_by=made.changeset.id)
        if LIFE.allows(old.state, Event.REJECT):
            reason = comment or f"superseded by {made.changeset.id}"
            rejected = decide.rejection(context, actor, superseded, reason)
            transition.move(context, actor, rejected, decide.commented(rejected))
        else:
            transition.update(context, superseded)
    return made
