"""The directories that sandboxes and runs own: ``sandboxes/<id>/`` and ``scratch/<id>/``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from flux.failpoints import Point
from flux.ports.files import Files
from flux.store.errors import from_os
from flux.store.removal import remove_tree
from flux.store.state import DIRECTORY, StateDirectory

_PRIVATE = 0o700
_OPEN = 0o755
_STICKY = 0o1777
_OWN = {"home": _OPEN, "tmp": _STICKY}
_LAYER = {"layer": _PRIVATE, "layer/upper": _OPEN, "layer/work": _OPEN}


class Places:
    """Makes and removes them."""

    def __init__(self, state: StateDirectory, files: Files) -> None:
        self._state = state
        self._files = files

    def make_sandbox(self, sandbox_id: str, *, layer: bool) -> None:
        """Make a sandbox's directory with ``home`` and ``tmp`` in it, and ``layer/upper`` and ``layer/work`` if asked.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; nothing is left behind then.
        """
        try:
            self._make(Point.SANDBOX_WRITE, self._state.sandboxes, sandbox_id, {**_OWN, **_LAYER} if layer else _OWN)
            self._files.sync_file(Point.SANDBOX_WRITE, self._state.sandboxes)
        except OSError as error:
            remove_tree(self._files, Point.SANDBOX_DELETE, self._state.sandboxes, sandbox_id)
            raise from_os(error, "make a sandbox's directory") from error

    def make_scratch(self, run_id: str) -> str:
        """Make a directory for one run, with ``home``, ``tmp``, ``tree`` and ``parents`` in it; return its path."""
        try:
            self._make(Point.SCRATCH, self._state.scratch, run_id, {**_OWN, "tree": _PRIVATE, "parents": _PRIVATE})
        except OSError as error:
            remove_tree(self._files, Point.SCRATCH, self._state.scratch, run_id)
            raise from_os(error, "make room for a run") from error
        return self._state.place("scratch", run_id)

    def _make(self, step: Point, parent: int, name: str, children: Mapping[str, int]) -> None:
        self._files.make_directory(step, parent, name, _PRIVATE)
        directory = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            for child, mode in children.items():
                self._files.make_directory(step, directory, child, mode)
                self._files.set_mode(step, directory, child, mode)  # whatever the process's mask is
        finally:
            os.close(directory)

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox's directory.

        Raises:
            FluxError: ``unavailable``; a repetition continues.
        """
        try:
            remove_tree(self._files, Point.SANDBOX_DELETE, self._state.sandboxes, sandbox_id)
            self._files.sync_file(Point.SANDBOX_DELETE, self._state.sandboxes)
        except OSError as error:
            raise from_os(error, f"remove the files of the sandbox {sandbox_id}") from error

    def remove_scratch(self, run_id: str) -> None:
        """Remove a run's directory."""
        try:
            remove_tree(self._files, Point.SCRATCH, self._state.scratch, run_id)
        except OSError as error:
            raise from_os(error, "clear up after a run") from error

    def sandboxes(self) -> list[str]:
        """Return the names in ``sandboxes/``."""
        return sorted(os.listdir(self._state.sandboxes))

    def scratch(self) -> list[str]:
        """Return the names in ``scratch/``."""
        return sorted(os.listdir(self._state.scratch))
