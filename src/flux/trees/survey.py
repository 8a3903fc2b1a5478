"""What the journal has to know before an apply writes: the pre-image of every step, as it is on disk right now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from flux.core import conflict, paths
from flux.core.changeset import Entry
from flux.core.errors import FluxError
from flux.core.manifest import LETTERS, EntryType
from flux.core.plan import Amend, New, Plan, Step
from flux.trees import metadata
from flux.trees.area import Directories, in_workspace
from flux.trees.beneath import DIRECTORY, open_beneath
from flux.trees.journal import Amended, Begun, Fresh, JournalStep, Parent, Place

_WRITABLE = 0o300


def survey(changeset_id: str, root: int, plan: Plan, place: Place) -> Begun:
    """Return the first record of the journal for ``plan``.

    Raises:
        FluxError: ``conflict`` if an entry that the plan counts on is gone.
        OSError: if the workspace cannot be read.
    """
    directories = in_workspace(root)
    try:
        steps = [_step(changeset_id, directories, step) for step in plan.steps]
        amended = [_amended(changeset_id, directories, amend) for amend in plan.amends]
        parents = [_parent(changeset_id, root, path) for path in _parents(plan)]
        if os.geteuid() != 0:
            parents += _stubborn(directories, plan.steps)
    finally:
        directories.close()
    return Begun(
        changeset_id=changeset_id,
        root_inode=os.fstat(root).st_ino,
        place=place,
        steps=steps,
        fresh=_fresh(plan),
        amended=amended,
        parents=parents,
        live=[(paths.to_bytes(path), paths.to_bytes(other)) for path, other in plan.live.items()],
    )


def _parents(plan: Plan) -> list[str]:
    return sorted({paths.parent(step.path) for step in plan.steps} | {paths.ROOT})


def gone(changeset_id: str, path: str) -> FluxError:
    """Return the conflict of a path that went, or became something else, between the drift check and its step."""
    text, encoded = paths.to_json(path)
    item = conflict.Conflict(
        path=text, path_base64=encoded, expected="as reviewed", found="absent or of another type", reason="deleted"
    )
    return conflict.refusal(changeset_id, [item])


def _step(changeset_id: str, directories: Directories, step: Step) -> JournalStep:
    inode = 0
    if step.kind != "create":
        try:
            directory, name = directories.parent(step.path)
            inode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
        except (FileNotFoundError, NotADirectoryError) as error:
            raise gone(changeset_id, step.path) from error
    return JournalStep(step.kind, paths.to_bytes(step.path), inode)


def _amended(changeset_id: str, directories: Directories, amend: Amend) -> Amended:
    try:
        status, old = metadata.read(directories.parent(amend.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise gone(changeset_id, amend.path) from error
    return Amended(paths.to_bytes(amend.path), status.st_ino, old, metadata.wanted(amend.entry))


def _parent(changeset_id: str, root: int, path: str) -> Parent:
    try:
        descriptor = open_beneath(root, path, os.O_PATH | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise gone(changeset_id, path) from error
    try:
        return _as_parent(path, os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _as_parent(path: str, status: os.stat_result) -> Parent:
    mode = stat.S_IMODE(status.st_mode)
    closed = mode & _WRITABLE != _WRITABLE and os.geteuid() == status.st_uid != 0
    return Parent(
        paths.to_bytes(path), status.st_ino, mode, status.st_mtime_ns, widened=mode | _WRITABLE if closed else 0
    )


def _stubborn(directories: Directories, steps: Iterable[Step]) -> list[Parent]:
    """Return the directories that leave and that their owner may not move, as that rewrites their ``..``."""
    found = []
    for step in steps:
        if step.kind == "create":
            continue
        directory, name = directories.parent(step.path)
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            parent = _as_parent(step.path, status)
            if parent.widened:
                found.append(parent)
    return found


def _fresh(plan: Plan) -> list[list[Fresh]]:
    result: list[list[Fresh]] = [[] for _ in plan.steps]
    for new in plan.new:
        result[slot_of(new)].append(
            Fresh(paths.to_bytes(new.path), LETTERS[new.entry.type], _size(new.entry), _content(new.entry))
        )
    return result


def slot_of(new: New) -> int:
    """Return the number of the slot that a new entry is built in."""
    return int(new.place.split("/", 2)[1])


def _size(entry: Entry) -> int:
    return entry.size if entry.type is EntryType.FILE else 0


def _content(entry: Entry) -> bytes:
    if entry.type is EntryType.SYMLINK:
        return paths.to_bytes(entry.link_target or "")
    return (entry.digest or "").encode()


def open_root(path: str) -> int:
    """Open the workspace's root directory by its path on the host."""
    return os.open(path, DIRECTORY)
