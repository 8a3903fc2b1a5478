"""Approving and rejecting (spec: speculation)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from flux.core import selection
from flux.core.access import Actor
from flux.core.changeset import LIFE, Changes, Changeset, ConflictScope, Event, SideEffects, State, Unstaged
from flux.core.digest import changeset_digest
from flux.core.errors import Code, FluxError
from flux.core.paths import portable, printable
from flux.core.requests import Approve, Decide
from flux.core.sideeffects import replayable
from flux.engine.context import Context
from flux.engine.results import ChangesetDetail
from flux.engine.speculation import lookup, mend, sweep, transition

_COMMENT_CHARACTERS_MAX = 10_000


@contextmanager
def deciding(context: Context, actor: Actor, reference: str, changeset_id: str, verb: str) -> Iterator[Changeset]:
    """Have a changeset alone for a decision; its time is looked at first.

    Raises:
        FluxError: ``not_found``, ``conflict`` at once if another request has it, ``expired``.
    """
    row = lookup.find(context, actor, reference, changeset_id)
    with context.locks.changeset(row.id):
        row = lookup.find(context, actor, reference, changeset_id)
        if row.intent is not None:
            mend.mend(context, row)
            row = lookup.find(context, actor, reference, changeset_id)
        record = sweep.expire_if_due(context, row, context.stores.changesets.read(row.id))
        if record.state is State.EXPIRED:
            raise sweep.refuse_expired(record, verb)
        yield record


def approve(context: Context, actor: Actor, reference: str, changeset_id: str, request: Approve) -> ChangesetDetail:
    """Approve a changeset or a part of it."""
    with deciding(context, actor, reference, changeset_id, "approve") as record:
        state = LIFE.next(record.state, Event.APPROVE)
        refuse_digest(record, request.digest)
        changes = context.stores.changesets.read_changes(record.id)
        kept, unstaged = _part(changes, record, request)
        scope = request.conflict_scope or record.conflict_scope
        approved = msgspec.structs.replace(
            record,
            state=state,
            only=None if request.only is None else [portable(change.location) for change in kept.every()],
            counts=lookup.counts(kept),
            side_effects=_effects(context.sandbox(actor, reference).place, record, kept),
            unstaged=unstaged,
            conflict_scope=scope,
            digest=digest(context, record, kept, unstaged, scope),
            warnings=[*record.warnings, *_warnings(unstaged)],
            decided_by=actor.name,
            decided_at=context.clock.wall(),
            comment=checked_comment(request.comment),
        )
        details: dict[str, object] = {"digest": approved.digest, **commented(approved)}
        transition.move(context, actor, approved, details)
        return ChangesetDetail(changeset=approved, changes=kept)


def reject(context: Context, actor: Actor, reference: str, changeset_id: str, request: Decide) -> ChangesetDetail:
    """Reject a changeset."""
    with deciding(context, actor, reference, changeset_id, "reject") as record:
        changes = lookup.effective(context, record)
        rejected = rejection(context, actor, record, checked_comment(request.comment))
        transition.move(context, actor, rejected, commented(rejected))
        return ChangesetDetail(changeset=rejected, changes=changes)


def rejection(context: Context, actor: Actor, record: Changeset, comment: str | None) -> Changeset:
    """Return ``record`` rejected."""
    now = context.clock.wall()
    return msgspec.structs.replace(
        record,
        state=LIFE.next(record.state, Event.REJECT),
        decided_by=actor.name,
        decided_at=now,
        finished_at=now,
        comment=comment,
    )


def refuse_digest(record: Changeset, reviewed: str | None) -> None:
    """Refuse a decision on something else than what was reviewed.

    Raises:
        FluxError: ``conflict``.
    """
    if reviewed is not None and reviewed != record.digest:
        raise FluxError(
            Code.CONFLICT,
            f"cannot approve the changeset {record.id}: what was reviewed has another digest; review it again",
            {"reason": "digest_mismatch", "expected": record.digest, "found": printable(reviewed)[:200]},
        )


def digest(
    context: Context, record: Changeset, changes: Changes, unstaged: list[Unstaged], scope: ConflictScope
) -> str:
    """Return the digest of what is approved."""
    return changeset_digest(
        sandbox_id=record.sandbox_id,
        root=(record.root_device, record.root_inode),
        paths=record.paths,
        scope=scope,
        base=context.stores.changesets.read_base(record.id),
        changes=changes.every(),
        unstaged=unstaged,
    )


def _part(changes: Changes, record: Changeset, request: Approve) -> tuple[Changes, list[Unstaged]]:
    if request.only is None:
        return changes, record.unstaged
    kept = selection.close(changes, request.only, record.unstaged)
    return kept, selection.close_unstaged(record.unstaged, request.only, kept)


def _effects(place: str, record: Changeset, kept: Changes) -> SideEffects:
    """Return the report with only what is left to apply."""
    return msgspec.structs.replace(record.side_effects, replayable=replayable(len(kept.every()), place))


def _warnings(unstaged: list[Unstaged]) -> list[str]:
    if not unstaged:
        return []
    return [
        f"{len(unstaged)} entries could not be staged, so this cannot be applied: reject it and narrow the paths, or "
        "approve only a part without them"
    ]


def commented(record: Changeset) -> dict[str, object]:
    """Return the comment as details of an audit line."""
    return {} if record.comment is None else {"comment": record.comment}


def checked_comment(comment: str | None) -> str | None:
    """Return a comment that a record can hold.

    Raises:
        FluxError: ``invalid`` if it is too long.
    """
    if comment is None:
        return None
    if len(comment) > _COMMENT_CHARACTERS_MAX:
        raise FluxError(Code.INVALID, f"cannot keep the comment: it has more than {_COMMENT_CHARACTERS_MAX} characters")
    return comment.encode("utf-8", "backslashreplace").decode("utf-8")
