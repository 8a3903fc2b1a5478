"""Applying: the checks in their order, the freeze, the commit, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from flux.core import manifest
from flux.core.access import Actor
from flux.core.audit import AuditEvent, AuditKind
from flux.core.changeset import LIFE, Changes, Changeset, Event, State
from flux.core.errors import Code, FluxError
from flux.core.paths import from_portable, printable
from flux.core.requests import Decide
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.lifecycle.roots import Root
from flux.engine.locks import host_wide
from flux.engine.results import ChangesetDetail
from flux.engine.speculation import decide, lookup, transition
from flux.trees.apply import Applied, ApplyJob
from flux.trees.apply import apply as apply_to_tree


def apply(context: Context, actor: Actor, reference: str, changeset_id: str, request: Decide) -> ChangesetDetail:
    """Bring an approved changeset into the real sandbox."""
    comment = decide.checked_comment(request.comment)
    with decide.deciding(context, actor, reference, changeset_id, "apply") as record:
        LIFE.next(record.state, Event.APPLY)
        sandbox = context.sandbox(actor, record.sandbox_id)
        changes = lookup.effective(context, record)
        with context.locks.sandbox(sandbox.id), _holding(context, sandbox, record) as root:
            _check(context, actor, record, changes)
            job = _Job(record, changes, root, roots.not_its_own(sandbox))
            applied = _apply(context, actor, job, comment)
        return ChangesetDetail(changeset=applied, changes=changes)


@contextmanager
def _holding(context: Context, sandbox: Sandbox, record: Changeset) -> Iterator[Root]:
    """Have the workspace alone, its processes frozen."""
    with ExitStack() as held:
        root = held.enter_context(roots.opened(context, sandbox))
        held.enter_context(roots.locked(context, root, exclusive=True))
        held.enter_context(host_wide(root.descriptor, context.settings.lock_wait_seconds))
        if (root.device, root.inode) != (record.root_device, record.root_inode):
            raise FluxError(
                Code.CONFLICT,
                f"cannot apply the changeset {record.id}: the workspace {printable(root.path)} was replaced by another "
                "directory since; run it again on that one",
                {"reason": "replaced", "changeset": record.state.value},
            )
        instance = context.instances.running(sandbox.id)
        if instance is not None:
            instance.freeze()
            held.callback(instance.thaw)
        yield root


def _check(context: Context, actor: Actor, record: Changeset, changes: Changes) -> None:
    """Refuse what must not be applied.

    Raises:
        FluxError: ``conflict`` for an unapplied parent, or a content that is not what was approved (the changeset then
            fails), ``not_applicable`` for unstaged entries.
    """
    if record.parent is not None and _state(context, record.parent) is not State.APPLIED:
        raise FluxError(
            Code.CONFLICT,
            f"cannot apply the changeset {record.id}: it stands on {record.parent}, which is not applied yet",
            {"reason": "parent", "parent": record.parent},
        )
    if decide.digest(context, record, changes, record.unstaged, record.conflict_scope) != record.digest:
        error = FluxError(
            Code.CONFLICT,
            f"cannot apply the changeset {record.id}: what is staged is not what was approved; nothing was written, "
            "run it again",
            {"reason": "digest_mismatch", "changeset": State.FAILED.value},
        )
        transition.fail(context, actor, record, error.message)
        raise error
    if record.unstaged:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot apply the changeset {record.id}: {len(record.unstaged)} entries could not be staged; reject it "
            "and narrow the paths, or approve only a part without them",
            {"unstaged": msgspec.to_builtins(record.unstaged[:10]), "count": len(record.unstaged)},
        )


def _state(context: Context, changeset_id: str) -> State | None:
    """Return the state of a changeset; one that was applied and is deleted by now counts as applied."""
    if context.stores.changesets.exists(changeset_id):
        return context.stores.changesets.read(changeset_id).state
    return None


class _Commit:
    """The moment at which an apply becomes final: ``meta.json`` says so."""

    def __init__(self, context: Context, record: Changeset, applied: Changeset) -> None:
        self._context = context
        self._record = record
        self._applied = applied

    def __call__(self) -> None:
        """Make it final, or raise with the record as it was: the tree is then taken back."""
        changesets = self._context.stores.changesets
        try:
            changesets.replace(self._applied)
        except FluxError:
            with suppress(FluxError):
                changesets.replace(self._record)
            if changesets.read(self._record.id).state is not State.APPLIED:
                raise


class _Job(msgspec.Struct, frozen=True):
    """What is applied, where, and which paths there are not the workspace's own."""

    record: Changeset
    changes: Changes
    root: Root
    skip: tuple[str, ...]


def _apply(context: Context, actor: Actor, job: _Job, comment: str | None) -> Changeset:
    record = job.record
    now = context.clock.wall()
    applied = msgspec.structs.replace(
        record,
        state=LIFE.next(record.state, Event.APPLY),
        applied_at=now,
        finished_at=now,
        comment=comment or record.comment,
    )
    event = transition.line(
        context, actor, applied, {"changes": transition.total(applied), **decide.commented(applied)}
    )
    transition.begin(context, applied, event)
    try:
        result = _write(context, job, _Commit(context, record, applied))
    except BaseException as error:
        _after_failure(context, actor, record, error)
        raise
    return _finish(context, applied, event, result)


def _write(context: Context, wanted: _Job, commit: _Commit) -> Applied:
    record = wanted.record
    with context.stores.changesets.opened(record.id) as directory:
        job = ApplyJob(
            changeset_id=record.id,
            root=wanted.root.descriptor,
            directory=directory,
            changes=wanted.changes.every(),
            base=manifest.decode(context.stores.changesets.read_base(record.id)),
            paths=[from_portable(path) for path in record.paths],
            scope=record.conflict_scope,
            files=context.files,
            skip=wanted.skip,
            revert_bytes=context.settings.caps.revert_bytes,
        )
        return apply_to_tree(job, commit)


def _finish(context: Context, applied: Changeset, event: AuditEvent, result: Applied) -> Changeset:
    # Where clearing up failed the intent stays: the next sweep, or the next start, clears up again.
    transition.finish(context, applied, event, settled=result.revertible or not applied.revertible)
    return applied


def _after_failure(context: Context, actor: Actor, record: Changeset, error: BaseException) -> None:
    """Say what became of the changeset: still approved if nothing was written, else failed."""
    if context.stores.changesets.read(record.id).state is State.APPLIED:
        return  # final; what is missing is made good by the next sweep
    if not isinstance(error, FluxError):
        transition.fail(context, actor, record, f"it was interrupted and taken back: {type(error).__name__}")
    elif error.details.get("changeset") == State.APPROVED.value:
        transition.cancel(context, record.id)
        if error.details.get("reason") == "drift":
            _audit_conflict(context, actor, record, int(error.details.get("count", 0)))
    else:
        transition.fail(context, actor, record, error.message)


def _audit_conflict(context: Context, actor: Actor, record: Changeset, count: int) -> None:
    context.observer.count("conflicts")
    context.stores.audit.append(
        context.line(
            AuditKind.CHANGESET_CONFLICT,
            actor,
            sandbox_id=record.sandbox_id,
            changeset=record.id,
            details={"files": count},
        )
    )
