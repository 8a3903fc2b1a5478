"""Removing an entry and all below it, while the sandbox may rename, link and fill what is being removed.

Every directory is entered from the one above it, by name and never through a link, and held open while it is emptied:
nothing that was moved out meanwhile takes the removal along. What another file system is mounted on stays.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from flux.failpoints import Point
from flux.ports.files import Files

_STEP = Point.FILE_WRITE
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: So many directories are open at most; what lies deeper is moved up first.
_DEPTH_MAX = 48
_PASSES_MAX = 64
_MOVED_MAX = 100_000


def remove(files: Files, directory: int, name: str) -> None:
    """Remove an entry of an open directory and all below it; nothing happens if it is gone.

    Raises:
        OSError: ``ENOTEMPTY`` if it is filled as fast as it is emptied, ``EBUSY`` or ``EXDEV`` for a mount.
    """
    for _ in range(_PASSES_MAX):
        if _unlinked(files, directory, name):
            return
        try:
            inside = _enter(directory, name)
        except (FileNotFoundError, NotADirectoryError):  # it became something else
            continue
        try:
            _Emptying(files, inside).run()
        finally:
            os.close(inside)
        if _gone(files, directory, name):
            return
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


def _unlinked(files: Files, directory: int, name: str) -> bool:
    """Remove what is no directory; tell whether nothing is left."""
    try:
        refuse_mounted(directory, name)
        files.unlink(_STEP, directory, name)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError) as error:
        if isinstance(error, PermissionError) and not _is_directory(directory, name):
            raise
        return False
    return True


def refuse_mounted(directory: int, name: str) -> None:
    """Let an entry pass on which nothing is mounted: its name could be taken from outside of the sandbox all the same.

    Raises:
        OSError: ``EBUSY``; ``ENOENT`` if it is gone.
    """
    from flux.trees import _native

    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if _native.mount_id(handle) != _native.mount_id(directory):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    finally:
        os.close(handle)


def _is_directory(directory: int, name: str) -> bool:
    try:
        os.close(_enter(directory, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _enter(directory: int, name: str) -> int:
    from flux.trees.beneath import open_beneath

    try:
        return open_beneath(directory, f"/{name}", _DIRECTORY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
        raise


def _gone(files: Files, directory: int, name: str) -> bool:
    try:
        files.remove_directory(_STEP, directory, name)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # filled, or replaced, meanwhile
            return False
        raise
    return True


class _Emptying:
    """Empties one directory, which its caller closes."""

    def __init__(self, files: Files, top: int) -> None:
        self._files = files
        self._top = top
        self._deep: list[str] = []
        self._moved = 0

    def run(self) -> None:
        """Empty it, as far as its entries hold still."""
        for name in _names(self._top):
            self._clear(self._top, name, 1)
        while self._deep:  # what was moved up here
            self._clear(self._top, self._deep.pop(), 1)

    def _clear(self, directory: int, name: str, depth: int) -> None:
        if _unlinked(self._files, directory, name):
            return
        if depth >= _DEPTH_MAX:
            self._move_up(directory, name)
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            inside = _enter(directory, name)
            try:
                for below in _names(inside):
                    self._clear(inside, below, depth + 1)
            finally:
                os.close(inside)
            _gone(self._files, directory, name)

    def _move_up(self, directory: int, name: str) -> None:
        if self._moved >= _MOVED_MAX:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._moved += 1
        above = f".flux-{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            self._files.rename(_STEP, directory, name, self._top, above)
            self._deep.append(above)


def _names(directory: int) -> list[str]:
    return os.listdir(directory)
