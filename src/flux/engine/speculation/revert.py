"""Reverting: a new changeset that holds the inverse of an applied one (spec: speculation)."""

from __future__ import annotations

import msgspec

from flux.core import conflict, manifest, risk
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.changeset import Changeset, Output, SideEffects, State
from flux.core.errors import Code, FluxError
from flux.core.paths import from_portable
from flux.core.requests import Decide
from flux.core.sandbox import Sandbox
from flux.core.sideeffects import replayable
from flux.engine import ids
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.results import ChangesetDetail
from flux.engine.speculation import decide, lookup, record, run, sweep, transition
from flux.engine.speculation.drive import Outcome
from flux.store.changesets import Draft
from flux.trees.area import same_mount
from flux.trees.inverse import stage_inverse
from flux.trees.scan import scan

_NOTHING_RAN = Outcome(
    exit_code=None, signal=None, timed_out=False, duration_ms=0, stdout=Output(text=""), stderr=Output(text="")
)
_OPEN = (State.PENDING, State.APPROVED, State.APPLIED)


def revert(context: Context, actor: Actor, reference: str, changeset_id: str, request: Decide) -> ChangesetDetail:
    """Make the inverse of an applied changeset, to be approved and applied like any other.

    Raises:
        FluxError: ``illegal_state`` if it is not applied, ``conflict`` if it is reverted already or what it replaced is
            not kept.
    """
    sweep.sweep(context)
    comment = decide.checked_comment(request.comment)
    row = lookup.find(context, actor, reference, changeset_id)
    with context.locks.changeset(row.id):
        original = context.stores.changesets.read(row.id)
        _refuse(context, original)
        sandbox = context.sandbox(actor, original.sandbox_id)
        inverse_id = ids.changeset()
        with context.locks.sandbox(sandbox.id), context.stores.changesets.draft(inverse_id) as draft:
            content = _content(context, sandbox, original, draft)
            made = record.make(context, sandbox.id, inverse_id, content, _origin(sandbox, original, content), None)
            made = msgspec.structs.replace(made, comment=comment)
            run.publish(context, actor, sandbox, draft, made, content, None)
        _mark(context, actor, original, made)
    return ChangesetDetail(changeset=made, changes=content.changes)


def _refuse(context: Context, original: Changeset) -> None:
    if original.state is not State.APPLIED:
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot revert the changeset {original.id}: it is {original.state}, and only an applied one can be",
            {"state": original.state.value, "event": "revert"},
        )
    by = original.reverted_by
    if by is not None and context.stores.changesets.exists(by):
        state = context.stores.changesets.read(by).state
        if state in _OPEN:
            raise FluxError(
                Code.CONFLICT,
                f"cannot revert the changeset {original.id}: {by} reverts it already and is {state}",
                {"reason": "reverted", "reverted_by": by, "state": state.value},
            )
    if not original.revertible:
        raise FluxError(
            Code.CONFLICT,
            f"cannot revert the changeset {original.id}: {original.revertible_reason or 'nothing was kept'}",
            {"reason": "not_revertible"},
        )


def _content(context: Context, sandbox: Sandbox, original: Changeset, draft: Draft) -> record.Content:
    applied = lookup.effective(context, original)
    covered = [from_portable(path) for path in original.paths]
    with roots.opened(context, sandbox) as root, roots.locked(context, root, exclusive=True):
        with context.stores.changesets.opened(original.id) as directory:
            changes, unstaged, tokens = stage_inverse(directory, applied, draft.blobs, context.files)
        current = scan(root.descriptor, covered, skip=roots.not_its_own(sandbox)).manifest
        tree = record.Tree(
            path=root.path,
            device=root.device,
            inode=root.inode,
            same_mount=same_mount(root.descriptor, context.stores.state.changesets),
        )
    return record.Content(
        tree=tree,
        changes=risk.flag(changes),
        unstaged=unstaged,
        base=manifest.encode(conflict.merge_applied(current, tokens, changes.every())),
        paths=covered,
        scope=original.conflict_scope,
    )


def _origin(sandbox: Sandbox, original: Changeset, content: record.Content) -> record.Origin:
    return record.Origin(
        command=f"revert {original.id}",
        argv=None,
        run_via="revert",
        outcome=_NOTHING_RAN,
        side_effects=SideEffects(
            egress="blocked",
            enforced=True,
            observed=[],
            replayable=replayable(len(content.changes.every()), sandbox.place),
        ),
        reverts=original.id,
    )


def _mark(context: Context, actor: Actor, original: Changeset, made: Changeset) -> None:
    event = context.line(
        AuditKind.CHANGESET_REVERTED,
        actor,
        sandbox_id=original.sandbox_id,
        changeset=original.id,
        details={"by": made.id},
    )
    transition.update(context, msgspec.structs.replace(original, reverted_by=made.id), event)
