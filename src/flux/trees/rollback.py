"""Taking a tree back to what it was before an apply, from the journal alone (spec: speculation).

Every step is judged by what is on disk, by inode, so that this can be interrupted and begun again any number of times.
Only renames and metadata are needed, so it works on a full disk. What somebody changed after a crash is never
destroyed: it stays, the earlier entry is kept in the area, and both are named.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import ParamSpec

import msgspec

from flux.core import paths
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import area, journal, metadata
from flux.trees.area import Spot, in_workspace
from flux.trees.journal import Amended, Fresh, Journal, JournalStep, Parent, Undone
from flux.trees.pristine import is_pristine

P = ParamSpec("P")

_STEP = Point.ROLLBACK
_TRIES = 64
# The way to a path is not there: somebody moved or replaced a directory.
_NO_WAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})


class Problem(msgspec.Struct, frozen=True):
    """A path that could not be taken back, and why."""

    path: str
    reason: str


class RollBack:
    """One attempt to take the tree back.

    Args:
        directory: the changeset's directory, open.
        root: the workspace's root, open.
        record: the journal; it is marked as undone at the end.
    """

    def __init__(self, files: Files, directory: int, root: int, record: Journal) -> None:
        self._files = files
        self._directory = directory
        self._root = root
        self._journal = record
        self._begun = record.begun
        self._spot_of_area = area.spot(record.begun.place, record.begun.changeset_id, directory, root)
        self._inodes = {parent.path: parent.inode for parent in record.begun.parents}
        self._directories = in_workspace(root)
        self._problems: list[Problem] = []
        self._kept: list[str] = []
        self._complete = True

    def run(self) -> list[Problem]:
        """Take everything back; return what could not be."""
        undone = self._journal.undone
        if undone is not None:
            self._problems = [Problem(paths.from_bytes(at), why) for at, why in undone.problems]
            self._kept = list(undone.kept)
            if undone.cleared:
                return self._problems
        try:
            inside = area.open_existing(self._spot_of_area)
        except OSError as error:
            return [Problem(self._spot_of_area[1], f"could not be opened: {error.strerror}")]
        try:
            if undone is None:
                self._undo(inside)
                self._attempt(b"/", self._files.sync_filesystem, _STEP, self._root)
            if self._complete:
                self._close(inside)
        finally:
            self._directories.close()
            if inside is not None:
                os.close(inside)
        return self._problems

    def _undo(self, inside: int | None) -> None:
        begun, prepared = self._begun, self._journal.prepared
        for amended in reversed(begun.amended if prepared else []):
            self._attempt(amended.path, self._restore, amended)
        if prepared is not None and inside is not None:
            for parent in begun.parents:
                self._attempt(parent.path, self._widen, parent)
            for slot in reversed(range(len(begun.steps))):
                step = begun.steps[slot]
                self._attempt(step.path, self._undo_step, inside, slot, step, prepared.inodes[slot], begun.fresh[slot])
        for parent in begun.parents:
            self._attempt(parent.path, self._restore_parent, parent)
        self._directories.close()

    def _attempt(self, path: bytes, action: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do one thing; where it fails go on with the rest, and leave the journal open for another attempt."""
        try:
            action(*args, **kwargs)
        except OSError as error:
            self._complete = False
            self._problems.append(Problem(paths.from_bytes(path), f"could not be taken back: {error.strerror}"))

    def _spot(self, path: bytes) -> Spot | None:
        """Return where ``path`` is, or ``None`` if there is no way to it, or only one to another directory.

        Somebody who moves directories about may have it back a moment later.
        """
        text = paths.from_bytes(path)
        known = self._inodes.get(paths.to_bytes(paths.parent(text)))
        for _ in range(_TRIES):
            try:
                directory, name = self._directories.parent(text)
            except OSError as error:
                if error.errno not in _NO_WAY:
                    raise
                continue
            if known is None or os.fstat(directory).st_ino == known:
                return directory, name
            self._directories.close()
        return None

    def _lost(self, path: bytes) -> None:
        """Note that there is no way to a path; the journal stays open, for another attempt once there is."""
        self._complete = False
        self._problems.append(Problem(paths.from_bytes(path), "its directory was moved or removed"))

    def _undo_step(self, inside: int, slot: int, step: JournalStep, new: int, fresh: Sequence[Fresh]) -> None:
        target, source = self._spot(step.path), (inside, str(slot))
        there = None if target is None else _inode(target)
        waiting = _inode(source)
        if waiting == new or (waiting is None and step.kind != "create"):
            return  # it was not installed, or is back already
        if target is None:
            self._lost(step.path)
        elif step.kind == "create":
            if there == new and waiting is None:
                self._take_out(step.path, target, source, new, fresh)
        elif there is None:
            self._make_movable(source)
            self._files.rename_new(_STEP, *source, *target)
        elif step.kind == "replace" and there == new and is_pristine(self._root, paths.from_bytes(step.path), fresh):
            self._make_movable(source)
            self._make_movable(target)
            self._files.exchange(_STEP, *source, *target)
        else:
            self._keep(step.path, slot, "it was changed after the apply stopped, and that is left in place")

    def _take_out(self, path: bytes, target: Spot, source: Spot, new: int, fresh: Sequence[Fresh]) -> None:
        if not is_pristine(self._root, paths.from_bytes(path), fresh):
            self._problems.append(
                Problem(paths.from_bytes(path), "it was changed after the apply stopped, and is left in place")
            )
            return
        self._make_movable(target)
        self._files.rename_new(_STEP, *target, *source)
        if _inode(source) != new:  # replaced in the very moment: it is somebody else's
            self._files.rename_new(_STEP, *source, *target)

    def _keep(self, path: bytes, slot: int, why: str) -> None:
        directory = f"{area.IN_CHANGESET}/{slot} of the changeset's directory"
        if self._begun.place == "workspace":
            directory = f"/{area.name_in_workspace(self._begun.changeset_id)}/{slot}"
        self._kept.append(str(slot))
        self._problems.append(Problem(paths.from_bytes(path), f"{why}; what was there before is kept in {directory}"))

    def _make_movable(self, spot: Spot) -> None:
        """Let its owner move a directory, which rewrites its ``..``; its own mode comes back with its parents' ones."""
        if os.geteuid() == 0:
            return
        mode = os.stat(spot[1], dir_fd=spot[0], follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & 0o300 != 0o300:
            self._files.set_mode(_STEP, *spot, stat.S_IMODE(mode) | 0o700)

    def _widen(self, parent: Parent) -> None:
        spot = self._spot(parent.path) if parent.widened else None
        if spot is not None and _inode(spot) == parent.inode:
            self._files.set_mode(_STEP, *spot, parent.widened)

    def _restore(self, amended: Amended) -> None:
        spot = self._spot(amended.path)
        if spot is None:
            self._lost(amended.path)
            return
        if _inode(spot) != amended.inode:
            return  # somebody put another entry there; its attributes are its own
        status, current = metadata.read_closed(self._files, _STEP, spot)
        target = metadata.before_ours(current, amended.old, amended.new, directory=stat.S_ISDIR(status.st_mode))
        symlink = stat.S_ISLNK(status.st_mode)
        metadata.settle(self._files, _STEP, spot, current, target, symlink=symlink)

    def _restore_parent(self, parent: Parent) -> None:
        spot = self._spot(parent.path)
        if spot is None:
            if parent.widened:
                self._lost(parent.path)
            return
        try:
            status = os.stat(spot[1], dir_fd=spot[0], follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_ino != parent.inode:
            return
        if parent.widened and stat.S_IMODE(status.st_mode) != parent.mode:
            self._files.set_mode(_STEP, *spot, parent.mode)
        if status.st_mtime_ns != parent.mtime_ns:
            self._files.set_times(_STEP, *spot, parent.mtime_ns)

    def _close(self, inside: int | None) -> None:
        """Say in the journal that the tree is back, clear the area, and say that too.

        A disk so full that the first cannot be said has room once the area is cleared.
        """
        problems = [(paths.to_bytes(item.path), item.reason) for item in self._problems]
        if self._journal.undone is None:
            self._say(Undone(problems, self._kept))
        try:
            self._clear(inside)
        except OSError as error:
            self._problems.append(Problem(self._spot_of_area[1], f"could not be cleared: {error.strerror}"))
        else:
            self._say(Undone(problems, self._kept, cleared=True))

    def _say(self, undone: Undone) -> None:
        with contextlib.suppress(OSError):
            journal.append(self._files, self._directory, self._journal, undone)

    def _clear(self, inside: int | None) -> None:
        if self._begun.place == "changeset":
            area.remove_probe(self._files, _STEP, self._root, self._begun.changeset_id)
        if inside is not None:
            with os.scandir(inside) as listing:
                names = [item.name for item in listing]
            for name in names:
                if name not in self._kept:
                    area.remove_tree(self._files, _STEP, inside, name)
            if not self._kept:
                self._files.remove_directory(_STEP, *self._spot_of_area)
        for parent in self._begun.parents:
            if parent.path == b"/":
                self._restore_parent(parent)
        self._files.sync_file(_STEP, self._spot_of_area[0])


def _inode(spot: Spot) -> int | None:
    try:
        return os.stat(spot[1], dir_fd=spot[0], follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None
