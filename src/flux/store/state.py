"""The state directory's layout, held by open descriptors."""

from __future__ import annotations

import os

from flux.failpoints import Point
from flux.ports.files import Files
from flux.store.errors import from_os

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PARTS = ("changesets", "sandboxes", "scratch")


class StateDirectory:
    """``<state>/`` with ``changesets/``, ``sandboxes/`` and ``scratch/`` in it, all 0700.

    Args:
        path: the state directory; it exists.
        files: the mutating file calls.

    Raises:
        FluxError: ``unavailable`` or ``exhausted`` if it cannot be used.
    """

    def __init__(self, path: str, files: Files) -> None:
        self.path = os.path.realpath(path)
        self._open: list[int] = []
        try:
            self.root = self._keep(os.open(self.path, DIRECTORY))
            self.changesets, self.sandboxes, self.scratch = (self._part(files, name) for name in _PARTS)
        except OSError as error:
            self.close()
            raise from_os(error, f"use the state directory {path}") from error

    def _keep(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def _part(self, files: Files, name: str) -> int:
        try:
            return self._keep(os.open(name, DIRECTORY, dir_fd=self.root))
        except FileNotFoundError:
            files.make_directory(Point.STATE_OPEN, self.root, name, 0o700)
            files.sync_file(Point.STATE_OPEN, self.root)
            return self._keep(os.open(name, DIRECTORY, dir_fd=self.root))

    def place(self, part: str, *names: str) -> str:
        """Return the path of something in a part (``sandboxes``, ``scratch``, ``changesets``)."""
        return os.path.join(self.path, part, *names)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        while self._open:
            os.close(self._open.pop())


def names_in(directory: int) -> list[str]:
    """Return the names in an open directory that several threads list.

    By a descriptor of its own: where a listing is, is kept with what is open, and two that share it hide names from
    each other as soon as there are more of them than one call returns.
    """
    own = os.open(".", DIRECTORY, dir_fd=directory)
    try:
        return os.listdir(own)
    finally:
        os.close(own)
