"""Names that only an overlay's index knows, made names of its layer, so that the layer stands for itself.

A write through one name of a linked file of a lower layer copies that one name up. Its other names show the copy
through the index beside the layer, which does not outlive the mount. The index says how many names each copy has; if
the layer holds fewer, the others are looked for in the whole merged tree, and touching one there makes the kernel put
its name into the layer too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from flux.core import paths
from flux.core.manifest import Manifest
from flux.failpoints import Point
from flux.ports.files import Files
from flux.ports.substrate import Instance
from flux.trees import _native
from flux.trees.beneath import open_parent

_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_INODE = 7


def complete_names(
    layer: int, index: str, prefix: str, files: Files, mounted: Callable[[], AbstractContextManager[Instance]]
) -> None:
    """Give the layer every name of what it holds.

    Args:
        layer: the layer's root, open.
        index: the path of the overlay's index; nothing happens if there is none.
        prefix: of what the overlay writes.
        files: the mutating file calls.
        mounted: holds an execution whose tree is the overlay; called only where names are missing.

    Raises:
        OSError: if a name cannot be made.
    """
    lost = _incomplete(layer, index, prefix)
    if not lost:
        return
    held = _native.scan(layer, paths.ROOT, [], None)[0]
    with mounted() as instance:
        tree = instance.tree_descriptor
        merged = _native.scan(tree, paths.ROOT, [], None)[0]
        for path in _names(lost, held, merged):
            _touch(files, tree, path)


def _incomplete(layer: int, index: str, prefix: str) -> dict[int, os.stat_result]:
    """Return the copies of which the layer does not hold all names, by inode."""
    copies = _copies(index, prefix)
    if not copies:
        return {}
    held = Counter(int(token.split(" ", 8)[_INODE]) for token in _native.scan(layer, paths.ROOT, [], None)[0].values())
    return {inode: status for inode, (status, links) in copies.items() if links is None or links > held[inode]}


def _copies(index: str, prefix: str) -> dict[int, tuple[os.stat_result, int | None]]:
    """Return what the index holds: by inode, its status and how many names it has in the merged tree, if that is said.

    Besides copies it holds whiteouts, and stand-ins for directories.
    """
    try:
        directory = os.open(index, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    found: dict[int, tuple[os.stat_result, int | None]] = {}
    try:
        for name in os.listdir(directory):
            handle = os.open(name, _HANDLE, dir_fd=directory)
            try:
                status = os.fstat(handle)
                whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                if not stat.S_ISDIR(status.st_mode) and not whiteout:
                    found[status.st_ino] = status, _links(handle, status, prefix)
            finally:
                os.close(handle)
    finally:
        os.close(directory)
    return found


def _links(handle: int, status: os.stat_result, prefix: str) -> int | None:
    try:
        said = os.getxattr(f"/proc/self/fd/{handle}", f"{prefix}nlink").decode("ascii")
        return status.st_nlink + int(said[1:]) if said.startswith("U") else None
    except (OSError, ValueError):
        return None


def _names(lost: dict[int, os.stat_result], held: Manifest, merged: Manifest) -> list[str]:
    """Return the names in the merged tree that belong to the copies and are not in the layer.

    Where the layer holds one name of a copy, the merged tree tells which others are the same. Where it holds none, they
    are those that look exactly like the copy, down to the moment of the last change.
    """
    known = {_field(merged[path]) for path, token in held.items() if path in merged and int(_field(token)) in lost}
    looks = {_look(status) for status in lost.values()}
    return [
        path
        for path, token in merged.items()
        if path not in held and not token.startswith("d ") and (_field(token) in known or _token_look(token) in looks)
    ]


def _field(token: str) -> str:
    return token.split(" ", 8)[_INODE]


def _look(status: os.stat_result) -> tuple[str, ...]:
    numbers = (status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return (f"{stat.S_IMODE(status.st_mode):o}", *map(str, numbers))


def _token_look(token: str) -> tuple[str, ...]:
    return tuple(token.split(" ", 7)[1:7])


def _touch(files: Files, tree: int, path: str) -> None:
    """Have the kernel put a name into the layer, by setting of the entry what it has already."""
    parent, name = open_parent(tree, path)
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        try:
            files.set_mode(Point.LAYER_WRITE, parent, name, stat.S_IMODE(status.st_mode))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ELOOP) or not stat.S_ISLNK(status.st_mode):
                raise
            files.set_owner(Point.LAYER_WRITE, parent, name, status.st_uid, status.st_gid)
    finally:
        os.close(parent)
