"""The area: where new entries wait before, and displaced ones after, their step; on the workspace's own mount.

It lies in the changeset's directory where that is on the same mount, else in the workspace's root under a name that
scans leave out and that nobody but the owner can enter. Slot ``k`` is the entry named ``k`` in it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TypeAlias

from flux.core import paths
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import _native
from flux.trees.beneath import DIRECTORY, open_beneath
from flux.trees.journal import Begun, Place

IN_CHANGESET = "area"
TRASH = "trash"
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH_MAX = 32

Spot: TypeAlias = tuple[int, str]


def name_in_workspace(changeset_id: str) -> str:
    """Return the name of an area that has to lie in the workspace's root."""
    return f".flux-{changeset_id}"


def spot(place: Place, changeset_id: str, directory: int, root: int) -> Spot:
    """Return the directory that the area lies in, and its name there."""
    if place == "changeset":
        return directory, IN_CHANGESET
    return root, name_in_workspace(changeset_id)


def same_mount(one: int, other: int) -> bool:
    """Tell whether two open directories lie on one mount of one file system."""
    return os.fstat(one).st_dev == os.fstat(other).st_dev and _native.mount_id(one) == _native.mount_id(other)


def create(files: Files, where: Spot) -> int:
    """Create the area and open it. What is built in it must not inherit an ACL from around it."""
    directory, name = where
    files.make_directory(Point.APPLY_PREPARE, directory, name)
    area = os.open(name, DIRECTORY, dir_fd=directory)
    try:
        for key in os.listxattr(area):
            if key.startswith("system.posix_acl"):
                files.remove_xattr(Point.APPLY_PREPARE, directory, name, key)
    except BaseException:
        os.close(area)
        raise
    return area


def refuse_existing(where: Spot) -> None:
    """Raise ``FileExistsError`` if the area's name is taken, before anything is written: that is not ours to clear."""
    directory, name = where
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, f"{name} is there already", name)


def open_existing(where: Spot) -> int | None:
    """Open the area, or return ``None`` if there is none: nothing, or nothing that Flux can have made."""
    directory, name = where
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077 == 0:
        return descriptor
    os.close(descriptor)
    return None


def remove_tree(files: Files, step: Point, directory: int, name: str) -> None:
    """Remove an entry and all below it; nothing happens if it is gone. Only for what is Flux's own to remove."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        files.unlink(step, directory, name)
        return
    _empty(files, step, _enter(files, step, directory, name))
    files.remove_directory(step, directory, name)


def _enter(files: Files, step: Point, directory: int, name: str) -> int:
    if os.geteuid() != 0:  # else the owner's missing permissions do not matter
        files.set_mode(step, directory, name, 0o700)
    return os.open(name, DIRECTORY, dir_fd=directory)


def _empty(files: Files, step: Point, current: int) -> None:
    """Empty a directory, then close it. No recursion: a tree may be deeper than a process may have files open."""
    above: list[tuple[str, list[str]]] = []
    try:
        inside = _unlink_files(files, step, current)
        while above or inside:
            if inside:
                name = inside.pop()
                above.append((name, inside))
                current = _step_to(_enter(files, step, current, name), current)
                inside = _unlink_files(files, step, current)
            else:
                name, inside = above.pop()
                current = _step_to(os.open("..", DIRECTORY, dir_fd=current), current)
                files.remove_directory(step, current, name)
    finally:
        os.close(current)


def _step_to(following: int, current: int) -> int:
    os.close(current)
    return following


def _unlink_files(files: Files, step: Point, directory: int) -> list[str]:
    """Remove what is not a directory; return the directories."""
    with os.scandir(directory) as listing:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_directory in found:
        if not is_directory:
            files.unlink(step, directory, name)
    return [name for name, is_directory in found if is_directory]


def probe(files: Files, inside: int, root: int, changeset_id: str) -> bool:
    """Tell whether entries can be renamed between the area and the workspace: a quota project may forbid it."""
    name = name_in_workspace(changeset_id)
    os.close(files.create(Point.APPLY_PREPARE, inside, name))
    try:
        files.rename_new(Point.APPLY_PREPARE, inside, name, root, name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    files.unlink(Point.APPLY_PREPARE, root, name)
    return True


def remove_probe(files: Files, step: Point, root: int, changeset_id: str) -> bool:
    """Remove what an interrupted probe left in the workspace's root; tell whether there was anything."""
    name = name_in_workspace(changeset_id)
    try:
        status = os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    files.unlink(step, root, name)
    return True


def settle_root(files: Files, step: Point, root: int, begun: Begun) -> None:
    """Put back the root's mtime after the area or its probe came and went, if nothing else changed it."""
    if any(paths.parent(paths.from_bytes(item.path)) == paths.ROOT for item in begun.steps):
        return
    times = [parent.mtime_ns for parent in begun.parents if parent.path == b"/"]
    times += [amended.new.mtime_ns for amended in begun.amended if amended.path == b"/"]
    if os.fstat(root).st_mtime_ns != times[-1]:
        files.set_times(step, root, ".", times[-1])


class Directories:
    """Open directories of one tree, at most ``limit`` of them, each used at most ``uses`` times before it is walked
    to again, so that a directory that was moved away is noticed.

    Raises (from ``parent`` and ``at``): ``OSError`` as ``open_beneath`` does.
    """

    def __init__(self, root: int, limit: int, uses: int, flags: int = _HANDLE) -> None:
        self._root = root
        self._limit = limit
        self._uses = uses
        self._flags = flags
        self._open: dict[str, list[int]] = {}

    def at(self, path: str) -> int:
        """Return the open directory at ``path``; it stays this object's to close."""
        held = self._open.pop(path, None)
        if held is not None and held[1] < self._uses:
            held[1] += 1
            self._open[path] = held
            return held[0]
        if held is not None:
            os.close(held[0])
        descriptor = open_beneath(self._root, path, self._flags)
        self._open[path] = [descriptor, 1]
        if len(self._open) > self._limit:
            oldest = next(iter(self._open))
            os.close(self._open.pop(oldest)[0])
        return descriptor

    def parent(self, path: str) -> Spot:
        """Return the open directory that holds ``path``, and the entry's name in it."""
        return self.at(paths.parent(path)), paths.name(path) or "."

    def close(self) -> None:
        """Close what is open; the object can be used again."""
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()


def in_area(area: int) -> Directories:
    """Return the directories of an area, which nobody else moves."""
    return Directories(area, limit=_DEPTH_MAX, uses=1 << 30)


def in_workspace(root: int) -> Directories:
    """Return the directories of a workspace, where anybody may move them."""
    return Directories(root, limit=2, uses=64)
