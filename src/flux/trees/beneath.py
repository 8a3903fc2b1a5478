"""Opening entries of a workspace without ever leaving it: no link is followed, no mount is crossed (spec: speculation).

The kernel does the walk (``openat2``). Where it cannot (before Linux 5.6, a filter that refuses the call, or a path
longer than a call takes) each component is opened by itself with ``O_NOFOLLOW`` and must lie on the root's mount.
"""

from __future__ import annotations

import errno
import os
import stat

from flux.core import paths
from flux.trees import _native

RESOLVE = _native.RESOLVE_BENEATH | _native.RESOLVE_NO_SYMLINKS | _native.RESOLVE_NO_XDEV
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open the entry at a workspace path below the directory ``root``.

    Args:
        root: an open directory, the workspace's root.
        path: an absolute workspace path.
        flags: as for ``os.open``; ``O_NOFOLLOW`` and ``O_CLOEXEC`` are added. ``O_PATH`` opens a symbolic link itself.

    Raises:
        OSError: ``ELOOP`` or ``ENOTDIR`` if a link is in the way, ``EXDEV`` if a mount or ``..`` is.
    """
    wanted = flags | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return _native.openat2(root, paths.relative(path), wanted, 0, RESOLVE)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENAMETOOLONG):
            raise
    return open_by_component(root, path, wanted)


def open_by_component(root: int, path: str, flags: int) -> int:
    """Do what ``open_beneath`` does without ``openat2``; slower, equally strict."""
    parts = paths.relative(path).split("/")
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    mount = _native.mount_id(root)
    current = os.open(".", _HANDLE, dir_fd=root)
    try:
        for part in parts[:-1]:
            following = os.open(part, _HANDLE, dir_fd=current)
            os.close(current)
            current = following
            _refuse_other_mount(current, mount, path)
        result = os.open(parts[-1], flags, dir_fd=current)
    finally:
        os.close(current)
    try:
        _refuse_other_mount(result, mount, path)
    except OSError:
        os.close(result)
        raise
    return result


def _refuse_other_mount(descriptor: int, mount: int, path: str) -> None:
    if _native.mount_id(descriptor) != mount:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def open_parent(root: int, path: str) -> tuple[int, str]:
    """Open the directory that holds ``path``; return it and the entry's name in it (``.`` for the root itself)."""
    return open_beneath(root, paths.parent(path), DIRECTORY), paths.name(path) or "."


def open_regular(root: int, path: str) -> int:
    """Open a regular file for reading. A FIFO or a device is never opened, whoever puts one there meanwhile.

    Raises:
        OSError: as ``open_beneath``; ``EINVAL`` if there is something else than a regular file.
    """
    handle = open_beneath(root, path, os.O_PATH)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
