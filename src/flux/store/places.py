"""The directories that sandboxes and runs own: ``sandboxes/<id>/`` and ``scratch/<id>/``.

A managed sandbox has one directory for each generation that runs: ``sandboxes/<id>/g<generation>/`` with ``upper/`` and
``work/``, what an overlay writes to, and what else belongs to that execution alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from flux.failpoints import Point
from flux.ports.files import Files
from flux.store.errors import from_os
from flux.store.removal import Removals, remove_tree
from flux.store.state import DIRECTORY, StateDirectory, names_in

_PRIVATE = 0o700
_OPEN = 0o755
_STICKY = 0o1777
_OWN = {"home": _OPEN, "tmp": _STICKY}
#: What an overlay writes to, in a generation's directory.
UPPER, WORK = "upper", "work"
#: The layer of an overlay that lies below the saved layers, where there is one.
MASK, MASK_WORK = "mask", "mask-work"
_MASK = {MASK: _OPEN, MASK_WORK: _OPEN}
_LAYER = {UPPER: _OPEN, WORK: _OPEN, **_MASK}
_GENERATION = re.compile(r"g([1-9][0-9]{0,18})")
#: Before there were generations, the only one lay here.
_BEFORE_GENERATIONS = "layer"


class Places:
    """Makes and removes them."""

    def __init__(self, state: StateDirectory, files: Files) -> None:
        self._state = state
        self._files = files
        self._removals = Removals(files, Point.SANDBOX_DELETE, state.scratch)
        for sandbox_id in self.sandboxes():
            if os.path.lexists(state.place("sandboxes", sandbox_id, _BEFORE_GENERATIONS)):
                self._bring_up_to_date(sandbox_id)

    def _bring_up_to_date(self, sandbox_id: str) -> None:
        try:
            with self._opened(sandbox_id) as directory:
                self._files.rename_new(Point.STATE_OPEN, directory, _BEFORE_GENERATIONS, directory, generation_name(1))
                self._files.sync_file(Point.STATE_OPEN, directory)
        except OSError as error:
            raise from_os(error, f"bring the directory of the sandbox {sandbox_id} up to date") from error

    def make_sandbox(self, sandbox_id: str) -> None:
        """Make a sandbox's directory with ``home`` and ``tmp`` in it, if it is not there.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; nothing is left behind then.
        """
        if self.has_sandbox(sandbox_id):
            return
        try:
            self._make(Point.SANDBOX_WRITE, self._state.sandboxes, sandbox_id, _OWN)
            self._files.sync_file(Point.SANDBOX_WRITE, self._state.sandboxes)
        except OSError as error:
            remove_tree(self._files, Point.SANDBOX_DELETE, self._state.sandboxes, sandbox_id)
            raise from_os(error, "make a sandbox's directory") from error

    def has_sandbox(self, sandbox_id: str) -> bool:
        """Tell whether a sandbox has a directory."""
        return os.path.isdir(self._state.place("sandboxes", sandbox_id))

    def changed(self, sandbox_id: str) -> float:
        """Return the wall-clock time of the last change of a sandbox's directory; the future for one that has gone."""
        try:
            return os.stat(self._state.place("sandboxes", sandbox_id), follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return float("inf")

    def make_generation(self, sandbox_id: str, generation: int) -> str:
        """Make a generation's directory with an empty ``upper``, ``work`` and mask, and return its path.

        Nothing is synced: whoever completes it does that.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; nothing is left behind then.
        """
        self.make_sandbox(sandbox_id)
        name = generation_name(generation)
        try:
            with self._opened(sandbox_id) as directory:
                self._make(Point.SANDBOX_WRITE, directory, name, _LAYER)
        except OSError as error:
            self.remove_generation(sandbox_id, generation)
            raise from_os(error, "make room for a sandbox's changes") from error
        return self.generation(sandbox_id, generation)

    def sync_sandbox(self, sandbox_id: str) -> None:
        """Make the names in a sandbox's directory durable."""
        try:
            with self._opened(sandbox_id) as directory:
                self._files.sync_file(Point.SANDBOX_WRITE, directory)
        except OSError as error:
            raise from_os(error, f"keep the files of the sandbox {sandbox_id}") from error

    def generation(self, sandbox_id: str, generation: int) -> str:
        """Return the path of a generation's directory, whether it is there or not."""
        return self._state.place("sandboxes", sandbox_id, generation_name(generation))

    def generations(self, sandbox_id: str) -> list[tuple[int, float]]:
        """Return the generations that have a directory, each with the wall-clock time of its last change."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self._state.place("sandboxes", sandbox_id)) as listing:
            for entry in listing:
                if match := _GENERATION.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        found.append((int(match[1]), entry.stat(follow_symlinks=False).st_mtime))
        return sorted(found)

    def remove_generation(self, sandbox_id: str, generation: int) -> None:
        """Remove a generation's directory, as ``remove_sandbox`` does it. Idempotent.

        Raises:
            FluxError: ``unavailable``; a repetition continues.
        """
        try:
            with suppress(FileNotFoundError), self._opened(sandbox_id) as directory:
                self._removals.take(directory, generation_name(generation), sandbox_id)
        except OSError as error:
            raise from_os(error, f"remove the files of generation {generation} of {sandbox_id}") from error

    @contextmanager
    def _opened(self, sandbox_id: str) -> Iterator[int]:
        directory = os.open(sandbox_id, DIRECTORY, dir_fd=self._state.sandboxes)
        try:
            yield directory
        finally:
            os.close(directory)

    def make_scratch(self, run_id: str) -> str:
        """Make a directory for one run, with ``home``, ``tmp``, ``tree``, ``parents`` and a mask; return its path."""
        try:
            parts = {**_OWN, "tree": _PRIVATE, "parents": _PRIVATE, **_MASK}
            self._make(Point.SCRATCH, self._state.scratch, run_id, parts)
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
        """Remove a sandbox's directory. Idempotent.

        Its files go after the return; until then they are among those of runs, where recovery looks for them.

        Raises:
            FluxError: ``unavailable``; a repetition continues.
        """
        try:
            self._removals.take(self._state.sandboxes, sandbox_id, sandbox_id)
        except OSError as error:
            raise from_os(error, f"remove the files of the sandbox {sandbox_id}") from error

    def remove_scratch(self, run_id: str) -> None:
        """Remove a run's directory."""
        try:
            remove_tree(self._files, Point.SCRATCH, self._state.scratch, run_id)
        except OSError as error:
            raise from_os(error, "clear up after a run") from error

    def close(self) -> None:
        """Wait for the removal of files that goes on. Idempotent."""
        self._removals.close()

    def sandboxes(self) -> list[str]:
        """Return the names in ``sandboxes/``."""
        return sorted(names_in(self._state.sandboxes))

    def scratch(self) -> list[str]:
        """Return the names in ``scratch/``, without those that are being removed."""
        pending = self._removals.pending()  # first: what is not pending any more is not there either
        return sorted(set(names_in(self._state.scratch)) - pending)


def generation_name(generation: int) -> str:
    """Return the name of a generation's directory."""
    return f"g{generation}"
