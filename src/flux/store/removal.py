"""Removing whole trees that Flux made itself, without following a link out of them."""

from __future__ import annotations

import itertools
import os
import stat

from flux.failpoints import Point
from flux.ports.files import Files

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_BITS = 0o700
_DEPTH_MAX = 64


def remove_tree(files: Files, step: Point, directory: int, name: str) -> None:
    """Remove ``name`` in ``directory`` and everything below it; nothing happens if it is not there."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        files.unlink(step, directory, name)
        return
    top = _open(files, step, directory, name)
    try:
        removal = _Removal(files, step, top)
        while os.listdir(top):
            removal.empty(top, 0)
    finally:
        os.close(top)
    files.remove_directory(step, directory, name)


class _Removal:
    """Empties a tree. What lies too deep to hold every level open is first moved to the top."""

    def __init__(self, files: Files, step: Point, top: int) -> None:
        self._files = files
        self._step = step
        self._top = top
        self._numbers = itertools.count()

    def empty(self, directory: int, depth: int) -> None:
        with os.scandir(directory) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in children:
            if not is_directory:
                self._files.unlink(self._step, directory, name)
            elif depth == _DEPTH_MAX:
                self._lift(directory, name)
            else:
                self._remove(directory, name, depth)

    def _remove(self, directory: int, name: str, depth: int) -> None:
        descriptor = _open(self._files, self._step, directory, name)
        try:
            self.empty(descriptor, depth + 1)
        finally:
            os.close(descriptor)
        self._files.remove_directory(self._step, directory, name)

    def _lift(self, directory: int, name: str) -> None:
        while True:
            try:
                self._files.rename_new(self._step, directory, name, self._top, f"deep{next(self._numbers)}")
            except FileExistsError:
                continue
            return


def _open(files: Files, step: Point, directory: int, name: str) -> int:
    mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if mode & _OWNER_BITS != _OWNER_BITS:
        files.set_mode(step, directory, name, mode | _OWNER_BITS)
    return os.open(name, _DIRECTORY, dir_fd=directory)
