"""Applying a changeset to the real workspace: all of it or nothing, whatever happens (spec: speculation).

Staged contents are hashed again and the workspace is compared with what was reviewed; then the journal is made durable,
new entries are built in the area, everything is synced, and entries are installed by renames that check what they
displace. The caller's ``commit`` makes the apply final. Until then any failure takes the tree back to what it was.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

import msgspec

from flux.core import conflict, paths
from flux.core.changeset import Change, ConflictScope, Entry
from flux.core.errors import Code, FluxError
from flux.core.limits import Caps
from flux.core.manifest import EntryType, Manifest
from flux.core.plan import Plan, implied_directories, make_plan
from flux.failpoints import Point, reach
from flux.ports.files import Files
from flux.trees import area, blobs, journal, trash
from flux.trees.beneath import open_beneath
from flux.trees.blobs import Blob
from flux.trees.build import Builder, late_modes
from flux.trees.drift import find_conflicts
from flux.trees.install import Installer
from flux.trees.journal import Journal, Place, Prepared
from flux.trees.rollback import Problem, RollBack
from flux.trees.survey import open_root, survey
from flux.trees.trash import Applied

__all__ = ["Applied", "ApplyJob", "Problem", "Recovery", "apply", "find_conflicts", "recover"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ApplyJob(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one apply needs. The caller holds the workspace's lock and has frozen the sandbox.

    Args:
        changeset_id: names the area where it has to lie in the workspace.
        root: the workspace's root, open.
        directory: ``<state_dir>/changesets/<id>``, open; ``blobs/`` is in it, the journal and the trash go there.
        changes: all changes.
        base: the reviewed manifest.
        paths: what the changeset covers.
        scope: what the drift check looks at.
        skip: workspace paths that do not belong to the workspace (a state directory inside it).
        revert_bytes: how much displaced content is kept for a revert.
    """

    changeset_id: str
    root: int
    directory: int
    changes: Sequence[Change]
    base: Manifest
    paths: Sequence[str]
    scope: ConflictScope
    files: Files
    skip: Sequence[str] = ()
    revert_bytes: int = Caps().revert_bytes


class Recovery(msgspec.Struct, frozen=True):
    """What recovery found and did: ``nothing`` to do, ``rolled_back``, ``committed`` (only cleared), or ``partial``:
    part of the change is still there, at the paths of ``problems``."""

    outcome: Literal["nothing", "rolled_back", "committed", "partial"]
    problems: list[Problem]


def apply(job: ApplyJob, commit: Callable[[], None]) -> Applied:
    """Apply a changeset and return whether it can be reverted.

    ``commit`` must make the state ``applied`` durable, or raise and leave it as it was.

    Raises:
        FluxError: ``details["changeset"]`` says what becomes of the changeset: ``approved`` (nothing was written, or it
            was taken back because the workspace had changed) or ``failed``. ``conflict`` for drift or a staged content
            that is not what was approved; ``not_applicable``, ``invalid``; ``exhausted`` without space; ``unavailable``
            after another failed call; ``unknown_outcome`` if the tree could not be taken back, naming the paths.
        BaseException: what ``commit`` or an interrupt raised, after the tree was taken back; the changeset failed.
    """
    _refuse_open_journal(job)
    store = blobs.open_directory(job.directory)
    try:
        staged = blobs.verify(job.files, job.changeset_id, store, job.changes)
        plan = make_plan([*_implied(job), *job.changes], job.base)
        found = find_conflicts(
            job.root,
            job.base,
            job.changes,
            paths=job.paths,
            scope=job.scope,
            skip=job.skip,
            later=[path for leaving in plan.displaced for path in leaving],
        )
        if found:
            raise conflict.refusal(job.changeset_id, found)
        for place in _places(job):
            applied = _Attempt(job, plan, staged, store, place).run(commit)
            if applied is not None:
                return applied
    except OSError as error:
        raise _unchanged(job.changeset_id, error) from error
    finally:
        if store is not None:
            os.close(store)
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot apply changeset {job.changeset_id}: the workspace does not allow renames in it: nothing was changed",
        {"changeset": "approved"},
    )


def _places(job: ApplyJob) -> tuple[Place, ...]:
    return ("changeset", "workspace") if area.same_mount(job.root, job.directory) else ("workspace",)


def _refuse_open_journal(job: ApplyJob) -> None:
    """Take back what an earlier attempt left, if a crash kept it from doing so itself: that changeset has failed."""
    record = journal.read(job.directory)
    if record is None:
        return
    interrupted = record.undone is None
    problems = RollBack(job.files, job.directory, job.root, record).run()
    if interrupted or problems:
        raise _failed(job.changeset_id, problems, "an earlier apply was interrupted", Code.ILLEGAL_STATE)


def _implied(job: ApplyJob) -> list[Change]:
    """Return additions of the directories above the changes that are neither there nor in the changes."""
    known = {change.location for change in job.changes} | {paths.ROOT}
    absent: set[str] = set()
    present: set[str] = set(known)
    for change in job.changes:
        if change.before is not None:
            continue
        above = paths.parent(change.location)
        while above not in present and above not in absent:
            if above in job.base or _exists(job.root, above):
                present.add(above)
                break
            absent.add(above)
            above = paths.parent(above)
    like = Entry(type=EntryType.DIRECTORY, mode="0755", uid=os.geteuid(), gid=os.getegid(), size=0, mtime_ns=0)
    return implied_directories(absent, like)


def _exists(root: int, path: str) -> bool:
    try:
        os.close(open_beneath(root, path, os.O_PATH))
    except FileNotFoundError:
        return False
    return True


class _Attempt:
    """One apply with the area in one place."""

    def __init__(self, job: ApplyJob, plan: Plan, staged: dict[str, Blob], store: int | None, place: Place) -> None:
        self._job = job
        self._files = job.files
        self._plan = plan
        self._staged = staged
        self._store = store
        self._place: Place = place
        self._spot = area.spot(place, job.changeset_id, job.directory, job.root)

    def run(self, commit: Callable[[], None]) -> Applied | None:
        """Apply, or return ``None`` with nothing changed if the area cannot be here."""
        job = self._job
        area.refuse_existing(self._spot)
        record = journal.begin(self._files, job.directory, survey(job.changeset_id, job.root, self._plan, self._place))
        try:
            usable = self._write(record)
            if usable:
                reach(Point.APPLY_COMMIT)
                commit()
        except BaseException as error:
            self._take_back(record, error)
        if not usable:
            self._take_back(record, None)
            return None
        return self._clean(record)

    def _write(self, record: Journal) -> bool:
        inside = area.create(self._files, self._spot)
        try:
            if self._place == "changeset":
                if not area.probe(self._files, inside, self._job.root, self._job.changeset_id):
                    return False
                area.settle_root(self._files, Point.APPLY_PREPARE, self._job.root, record.begun)
            self._prepare(record, inside)
            self._install(record, inside)
        finally:
            os.close(inside)
        return True

    def _prepare(self, record: Journal, inside: int) -> None:
        job = self._job
        builder = Builder(
            changeset_id=job.changeset_id,
            files=self._files,
            root=job.root,
            area=inside,
            blobs=self._store,
            staged=self._staged,
            base=job.base,
        )
        inodes = builder.build(self._plan)
        self._files.sync_filesystem(Point.APPLY_SYNC, inside)
        journal.append(self._files, job.directory, record, Prepared(inodes))

    def _install(self, record: Journal, inside: int) -> None:
        job = self._job
        installer = Installer(self._files, job.root, inside, record.begun, self._plan, job.base)
        try:
            installer.widen()
            installer.install()
            installer.finish(late_modes(self._plan))
        finally:
            installer.close()
        self._files.sync_filesystem(Point.APPLY_SYNC, job.root)

    def _take_back(self, record: Journal, error: BaseException | None) -> None:
        """Roll back and raise what the caller is to see."""
        job = self._job
        problems = RollBack(self._files, job.directory, job.root, record).run()
        if problems:
            raise _failed(job.changeset_id, problems, str(error), Code.UNKNOWN_OUTCOME) from error
        if isinstance(error, OSError):
            _raise_failed(job.changeset_id, error)
        if error is not None:
            raise error

    def _clean(self, record: Journal) -> Applied:
        """Clear up. The apply is final: a call that fails here is made again by recovery, or only costs the revert."""
        job = self._job
        try:
            return trash.keep(self._files, job.directory, job.root, record, job.revert_bytes)
        except OSError as error:
            return Applied(False, f"the replaced content could not be kept: {error.strerror}")


def _raise_failed(changeset_id: str, error: OSError) -> NoReturn:
    code = Code.EXHAUSTED if error.errno in _FULL else Code.UNAVAILABLE
    raise FluxError(
        code,
        f"cannot apply changeset {changeset_id}: {_why(error)}: everything was taken back, and the changeset "
        "has failed; rerun it once that is mended",
        {"changeset": "failed", "rolled_back": True},
    ) from error


def _unchanged(changeset_id: str, error: OSError) -> FluxError:
    code = Code.EXHAUSTED if error.errno in _FULL else Code.UNAVAILABLE
    return FluxError(
        code,
        f"cannot apply changeset {changeset_id}: {_why(error)}: nothing was changed; try again once that is mended",
        {"changeset": "approved"},
    )


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _failed(changeset_id: str, problems: Sequence[Problem], why: str, code: Code) -> FluxError:
    details = {
        "changeset": "failed",
        "rolled_back": not problems,
        "problems": [{"path": paths.to_json(item.path)[0], "reason": item.reason} for item in problems],
    }
    if not problems:
        return FluxError(
            code, f"cannot apply changeset {changeset_id}: {why}: everything was taken back; rerun it", details
        )
    named = "; ".join(f"{paths.printable(item.path)}: {item.reason}" for item in problems)
    return FluxError(
        Code.UNKNOWN_OUTCOME,
        f"cannot apply changeset {changeset_id}: {why}, and not everything could be taken back ({named}): look at "
        "these paths by hand",
        details,
    )


def recover(
    directory: int, root_path: str, *, committed: bool, files: Files, revert_bytes: int = Caps().revert_bytes
) -> Recovery:
    """Finish what a crash interrupted, from the journal alone: roll back, or only clear up if it was committed.

    Idempotent, also when it is killed itself.

    Args:
        directory: ``<state_dir>/changesets/<id>``, open.
        root_path: the workspace's root on the host.
        committed: whether the changeset's state is ``applied``.

    Raises:
        FluxError: ``internal`` if the journal is damaged.
        OSError: if clearing up after a commit fails.
    """
    record = journal.read(directory)
    if record is None:
        return Recovery("nothing", [])
    try:
        root = open_root(root_path)
    except OSError as error:
        return Recovery("partial", [Problem(paths.ROOT, f"the workspace cannot be opened: {_why(error)}")])
    try:
        if os.fstat(root).st_ino != record.begun.root_inode:
            return Recovery("partial", [Problem(paths.ROOT, "the workspace's directory was replaced by another one")])
        if committed and record.undone is None:
            trash.keep(files, directory, root, record, revert_bytes)
            return Recovery("committed", [])
        problems = RollBack(files, directory, root, record).run()
        return Recovery("partial" if problems else "rolled_back", problems)
    finally:
        os.close(root)
