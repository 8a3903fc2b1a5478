"""Speculating: run, capture, publish; and the dry run that keeps nothing (spec: speculation)."""

from __future__ import annotations

from contextlib import suppress

from flux.core import manifest, risk
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.changeset import Changes, Changeset
from flux.core.errors import FluxError
from flux.core.paths import portable
from flux.core.requests import DryRun, Speculate
from flux.core.sandbox import Sandbox
from flux.engine import ids
from flux.engine.context import Context
from flux.engine.lifecycle import launch
from flux.engine.results import ChangesetDetail, DryRunResult
from flux.engine.speculation import isolated, kept_request, lookup, record, stack, sweep, transition
from flux.engine.speculation.isolated import Finished, Targets
from flux.store import changeset_index
from flux.store.changesets import Draft


def speculate(
    context: Context, actor: Actor, reference: str, request: Speculate, *, supersedes: str | None = None
) -> ChangesetDetail:
    """Run a command in a throwaway copy and publish what it changed."""
    sweep.sweep(context)
    sandbox = context.sandbox(actor, reference)
    parents = stack.lineage(context, actor, sandbox, request.parent)
    changeset_id = ids.changeset()
    with context.locks.sandbox(sandbox.id), context.stores.changesets.draft(changeset_id) as draft:
        finished = isolated.run(context, sandbox, request, Targets(draft.blobs, draft.preimages), parents)
        content = _content(context, request, finished)
        made = record.make(
            context,
            sandbox.id,
            changeset_id,
            content,
            _origin(request, finished, supersedes),
            request.ttl_seconds,
        )
        publish(context, actor, sandbox, draft, made, content, kept_request.encode(request))
    return ChangesetDetail(changeset=made, changes=content.changes)


def dry_run(context: Context, actor: Actor, reference: str, request: DryRun) -> DryRunResult:
    """Run a command in a throwaway copy and report; the staged contents go with the draft."""
    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id), context.stores.changesets.draft(ids.changeset()) as draft:
        finished = isolated.run(context, sandbox, request, Targets(draft.blobs, draft.preimages))
    changes = risk.flag(finished.capture.changes)
    outcome, capture = finished.outcome, finished.capture
    return DryRunResult(
        sandbox_id=sandbox.id,
        command=portable(launch.shown(request)),
        copy_engine=finished.engine,
        copy_engine_reason=finished.engine_reason,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        duration_ms=outcome.duration_ms,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        counts=lookup.counts(changes),
        changes=changes,
        unstaged=list(capture.unstaged),
        skipped=list(capture.skipped),
        not_captured=list(capture.not_captured),
        discarded=finished.discarded,
        side_effects=finished.side_effects,
        base_changed_during_run=bool(capture.base_changes),
        base_changes=[portable(path) for path in capture.base_changes],
    )


def publish(
    context: Context,
    actor: Actor,
    sandbox: Sandbox,
    draft: Draft,
    made: Changeset,
    content: record.Content,
    request: bytes | None,
) -> None:
    """Make a changeset visible: the row with its intent, the directory, the audit line, the row settled.

    Raises:
        FluxError: ``exhausted`` or ``unavailable``: nothing is left; ``unknown_outcome`` if only the audit failed.
    """
    event = context.line(
        AuditKind.CHANGESET_CREATE,
        actor,
        sandbox_id=sandbox.id,
        changeset=made.id,
        line_id=f"{made.id}:create",
        details={"via": made.run_via, "changes": transition.total(made), "command": made.command},
    )
    with context.stores.database.transaction() as tx:
        changeset_index.insert(tx, made, owner=sandbox.owner, line=event)
    try:
        context.stores.changesets.publish(draft, made, content.changes, content.base, request)
    except FluxError:
        with suppress(FluxError):
            context.stores.changesets.delete(made.id)
            with context.stores.database.transaction() as tx:
                changeset_index.delete(tx, made.id)
        raise
    transition.finish(context, made, event)
    context.observer.count("staged_bytes", _staged_bytes(content.changes))


def _staged_bytes(changes: Changes) -> int:
    """Return the size of the contents that the changeset keeps itself."""
    kept = (change for change in changes.every() if change.staged is not None and change.staged.blob is not None)
    return sum(change.after.size for change in kept if change.after is not None)


def _content(context: Context, request: Speculate, finished: Finished) -> record.Content:
    capture = finished.capture
    return record.Content(
        tree=finished.tree,
        changes=risk.flag(capture.changes),
        unstaged=list(capture.unstaged),
        base=manifest.encode(capture.base),
        paths=isolated.checked_paths(request.paths),
        scope=request.conflict_scope or context.settings.conflict_scope,
    )


def _origin(request: Speculate, finished: Finished, supersedes: str | None) -> record.Origin:
    capture = finished.capture
    return record.Origin(
        command=portable(launch.shown(request)),
        argv=None if request.argv is None else [portable(argument) for argument in request.argv],
        run_via="workspace-copy",
        outcome=finished.outcome,
        side_effects=finished.side_effects,
        copy_engine=finished.engine,
        copy_engine_reason=finished.engine_reason,
        skipped=list(capture.skipped),
        not_captured=list(capture.not_captured),
        discarded=finished.discarded,
        base_changes=list(capture.base_changes),
        parent=request.parent,
        supersedes=supersedes,
    )
