"""A watch over a directory of a running sandbox, for as long as the execution lasts."""

from __future__ import annotations

import errno
import os
from typing import Literal, cast

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.engine.filesystem.entries import FileEntry, entry_of
from flux.engine.filesystem.names import Owners
from flux.ports.substrate import Instance
from flux.trees.beneath import open_beneath
from flux.trees.inotify import DirectoryWatch, Event, Happened

Change = Literal["create", "write", "remove", "rename", "chmod"]


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to ``name``, which is relative to the watched directory (``.``: the directory itself).

    ``entry``: what is there now, if it was asked for and something is.
    """

    name: str
    type: Change
    entry: FileEntry | None = None


class Watch:
    """Tells what happens in a directory. One thread at a time.

    ``descriptor`` is readable when there is something to ``read``, ``end_descriptor`` when the execution has ended: who
    has a watch closes it then, for it holds the sandbox's file system. Both are the watch's own.

    Args:
        directory: the open directory; the caller's to close.
        path: its path inside.
        instance: the execution.
        root: the open root of a managed sandbox, for its names of owners.
        recursive: watch what is below too.

    Raises:
        FluxError: ``exhausted`` for more directories than can be watched.
    """

    def __init__(self, directory: int, path: str, instance: Instance, root: int | None, *, recursive: bool) -> None:
        self.path = path
        self._held: list[int] = []
        try:
            self._directory = self._keep(directory)
            self._root = None if root is None else self._keep(root)
            self.end_descriptor = self._keep(instance.end_descriptor)
            self._watch = DirectoryWatch(self._directory, recursive=recursive)
        except OSError as error:
            self._release()
            raise _refusal(error, path) from error

    @property
    def descriptor(self) -> int:
        """Readable when something happened."""
        return self._watch.descriptor

    def _keep(self, descriptor: int) -> int:
        kept = os.dup(descriptor)
        self._held.append(kept)
        return kept

    def read(self, *, entries: bool = False) -> list[WatchEvent]:
        """Return what happened since, oldest first. ``entries``: with what is told of each entry now.

        Raises:
            FluxError: ``exhausted`` if more happened than the kernel kept, or directories came that cannot be watched:
                some of it is lost, the watch is of no more use.
        """
        try:
            events = self._watch.read()
        except OSError as error:
            raise _refusal(error, self.path) from error
        if any(event.happened is Happened.RESCAN for event in events):
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot tell all that happened in {printable(self.path)[:200]}: more came than was read; list the "
                "directory, and watch it anew",
                {"reason": "rescan"},
            )
        owners = Owners(self._root)
        return [self._event(event, owners if entries else None) for event in events]

    def _event(self, event: Event, owners: Owners | None) -> WatchEvent:
        entry = None if owners is None else self._entry(event.name, owners)
        return WatchEvent(name=event.name, type=cast(Change, event.happened.value), entry=entry)

    def _entry(self, name: str, owners: Owners) -> FileEntry | None:
        within = "" if name == "." else name
        try:
            handle = open_beneath(self._directory, f"/{within}", os.O_PATH)
        except OSError:
            return None
        try:
            return entry_of(handle, paths.join(self.path, within) if within else self.path, owners)
        finally:
            os.close(handle)

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._watch.close()
        self._release()

    def _release(self) -> None:
        while self._held:
            os.close(self._held.pop())


def _refusal(error: OSError, path: str) -> FluxError:
    action = f"cannot watch {printable(path)[:200]}"
    if error.errno == errno.E2BIG:
        return FluxError(Code.EXHAUSTED, f"{action}: {error.strerror}; watch one further down")
    if error.errno in (errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        return FluxError(Code.EXHAUSTED, f"{action}: the machine has no watch left; end others first")
    return FluxError(Code.UNAVAILABLE, f"{action}: {(error.strerror or str(error)).lower()}")
