"""Removing whole trees that Flux made itself, without following a link out of them; at once, or soon."""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections import deque
from contextlib import suppress

from flux.failpoints import Point
from flux.ports.files import Files

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_BITS = 0o700
_DEPTH_MAX = 64
#: So many trees may wait; who comes with more removes his own.
_WAITING_MAX = 32


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


class Removals:
    """Removes trees that were put out of the way, in a thread of its own while there are any.

    What it does not get to, or cannot remove, stays where it is, out of everybody's way.

    Args:
        files: the mutating file calls.
        step: what the removal belongs to.
        directory: where the trees are, open for as long as this is.
    """

    def __init__(self, files: Files, step: Point, directory: int) -> None:
        self._files = files
        self._step = step
        self._directory = directory
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._own: set[str] = set()
        self._thread: threading.Thread | None = None

    def take(self, source: int, name: str, label: str) -> None:
        """Put ``name`` in the directory ``source`` out of the way, durably, and have it removed; ``label`` tells whose.

        Raises:
            OSError: it cannot be put there, or removed; nothing happens if it is not there.
        """
        gone = self._name(label)
        try:
            self._files.rename_new(self._step, source, name, self._directory, gone)
            self._files.sync_file(self._step, self._directory)
            self._files.sync_file(self._step, source)
        except BaseException as error:
            self._forget(gone)
            if isinstance(error, FileNotFoundError):
                return
            raise
        with self._lock:
            later = len(self._waiting) < _WAITING_MAX
            if later:
                self._waiting.append(gone)
                self._start()
        if not later:
            self._remove(gone)

    def pending(self) -> set[str]:
        """Return the names in the directory that are being removed, or wait for it."""
        with self._lock:
            return set(self._own)

    def close(self) -> None:
        """Wait until everything is removed. Idempotent."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _name(self, label: str) -> str:
        """Return a name that is not taken, and is pending from now on."""
        with self._lock:
            while True:
                gone = f"gone-{label}-{next(self._numbers)}"
                try:
                    os.stat(gone, dir_fd=self._directory, follow_symlinks=False)
                except FileNotFoundError:
                    self._own.add(gone)
                    return gone

    def _forget(self, gone: str) -> None:
        with self._lock:
            self._own.discard(gone)

    def _remove(self, gone: str) -> None:
        try:
            remove_tree(self._files, self._step, self._directory, gone)
        finally:
            self._forget(gone)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="flux-removals", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                gone = self._waiting.popleft()
            with suppress(OSError):  # recovery finds it after the next start
                self._remove(gone)
