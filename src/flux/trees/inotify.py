"""What happens in a directory, and below it if asked for, as the kernel tells it (inotify).

Directories are watched through descriptors that were resolved without links, so that a name which is swapped meanwhile
leads nowhere else. Names are lossless text, relative to the watched directory; ``.`` is the directory itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from flux.core import paths
from flux.trees.beneath import open_beneath

DIRECTORIES_MAX = 8192
_HANDLE = os.O_PATH | os.O_DIRECTORY
_READ_BYTES = 256 * 1024
_READS_MAX = 16
_PARTNER_MS = 10
_FOUND_MAX = 65536
_RECORD = struct.Struct("=iIII")

_MODIFY, _ATTRIB = 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_MASK_ADD = 0x20000000
_WANTED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF


class Happened(StrEnum):
    """What happened to a name. ``RESCAN``: more than could be kept; who wants to know has to look."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    RESCAN = "rescan"


class Event(msgspec.Struct, frozen=True):
    """One thing that happened."""

    name: str
    happened: Happened


class _Record(msgspec.Struct, frozen=True):
    """An event as the kernel has it."""

    watch: int
    mask: int
    cookie: int
    name: str


_KINDS = (
    (_CREATE | _MOVED_TO, Happened.CREATE),
    (_MODIFY, Happened.WRITE),
    (_DELETE | _DELETE_SELF, Happened.REMOVE),
    (_MOVED_FROM | _MOVE_SELF, Happened.RENAME),
    (_ATTRIB, Happened.CHMOD),
)


class DirectoryWatch:
    """Watches a directory. One thread at a time; ``descriptor`` is readable when there is something to ``read``.

    Args:
        directory: an open directory (``O_PATH`` suffices); the caller's to close.
        recursive: what is below too, also what is made or moved there later.
        limit: how many directories are watched at most.

    Raises:
        OSError: ``ENOSPC`` or ``EMFILE`` if the kernel has no watch left, ``E2BIG`` for too many directories.
    """

    def __init__(self, directory: int, *, recursive: bool = False, limit: int = DIRECTORIES_MAX) -> None:
        self._recursive = recursive
        self._limit = limit
        self._places: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        #: Names that were found by looking and whose creation may be told again by the kernel.
        self._found: set[str] = set()
        self._above = -1
        #: Directories that were moved away, and whose new place is not known yet.
        self._moving: dict[int, str] = {}
        self.descriptor = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._root = os.dup(directory)
        try:
            self._add("", self._root)
            self._above = self._watch_above()
            if recursive:
                for _ in self._follow(""):
                    pass
        except BaseException:
            self.close()
            raise

    def _watch_above(self) -> int:
        """Have removals told in the directory above: this one's own is not, as long as it is held open."""
        above = os.open("..", _HANDLE | os.O_CLOEXEC, dir_fd=self._root)
        try:
            return self._watched(above, _DELETE | _MASK_ADD)
        finally:
            os.close(above)

    def _is_removed(self) -> bool:
        return os.readlink(f"/proc/self/fd/{self._root}").endswith(" (deleted)")

    def read(self) -> list[Event]:
        """Return what happened since, oldest first; empty if nothing did. The kernel keeps a bounded number.

        Raises:
            OSError: as at the start, for directories that came later.
        """
        events: list[Event] = []
        for record in self._records():
            events += self._told(record)
        if self._moving and select.select([self.descriptor], [], [], _PARTNER_MS / 1000)[0]:
            for record in self._records():
                events += self._told(record)
        for place in self._moving.values():  # what left the tree is nobody's any more
            self._forget(place)
        self._moving.clear()
        return events

    def _records(self) -> Iterator[_Record]:
        for _ in range(_READS_MAX):
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, cookie, length = _RECORD.unpack_from(data, position)
                position += _RECORD.size
                name = data[position : position + length].rstrip(b"\0")
                position += length
                yield _Record(watch, mask, cookie, paths.from_bytes(name))

    def _told(self, record: _Record) -> list[Event]:
        if record.mask & _OVERFLOW:
            return [Event(".", Happened.RESCAN)]
        if record.mask & _IGNORED:
            self._lost(record.watch)
            return []
        place = self._places.get(record.watch)
        if place is None:
            removed = record.watch == self._above and record.mask & _IS_DIRECTORY and self._is_removed()
            return [Event(".", Happened.REMOVE)] if removed else []
        own = record.mask & (_DELETE_SELF | _MOVE_SELF) or not record.name
        if own and place:  # the directory above tells that
            return []
        name = place if own else _join(place, record.name)
        events = [Event(name or ".", kind) for mask, kind in _KINDS if record.mask & mask]
        if record.mask & _CREATE and name in self._found:  # looking was faster
            self._found.discard(name)
            events = []
        if record.mask & (_DELETE | _MOVED_FROM):
            self._found.discard(name)
        if self._recursive and record.mask & _IS_DIRECTORY and not own:
            events += self._followed(record, name)
        return events

    def _followed(self, record: _Record, name: str) -> list[Event]:
        """Watch a directory where it is now; return what had happened in it before it was watched."""
        if record.mask & _MOVED_FROM:
            self._moving[record.cookie] = name
        elif record.mask & _MOVED_TO:
            before = self._moving.pop(record.cookie, None)
            if before is None:
                for _ in self._follow(name):
                    pass
            else:
                self._rename(before, name)
        elif record.mask & _CREATE:
            return [Event(found, Happened.CREATE) for found in self._follow(name, remember=True)]
        return []

    def _follow(self, name: str, *, remember: bool = False) -> Iterator[str]:
        """Watch a directory and all below it, and yield what is in them; what vanishes meanwhile is let go."""
        pending = [name]
        while pending:
            place = pending.pop()
            try:
                handle = open_beneath(self._root, f"/{place}", _HANDLE)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
                    continue
                raise
            try:
                self._add(place, handle)
                for below, is_directory in _listed(handle):
                    found = _join(place, below)
                    if remember and len(self._found) < _FOUND_MAX:
                        self._found.add(found)
                    yield found
                    if is_directory:
                        pending.append(found)
            except (FileNotFoundError, PermissionError):
                continue
            finally:
                os.close(handle)

    def _add(self, place: str, handle: int) -> None:
        if len(self._places) >= self._limit:
            raise OSError(errno.E2BIG, f"there are more than {self._limit} directories")
        watch = self._watched(handle, _WANTED)
        known = self._places.get(watch)
        if known is not None and known != place:
            self._watches.pop(known, None)
        self._places[watch] = place
        self._watches[place] = watch

    def _watched(self, handle: int, mask: int) -> int:
        path = f"/proc/self/fd/{handle}".encode("ascii")
        return _checked(_libc().inotify_add_watch(self.descriptor, path, mask))

    def _rename(self, before: str, after: str) -> None:
        for place in self._below(before):
            watch = self._watches.pop(place)
            moved = after + place[len(before) :]
            self._places[watch] = moved
            self._watches[moved] = watch

    def _forget(self, name: str) -> None:
        for place in self._below(name):
            watch = self._watches.pop(place)
            del self._places[watch]
            _libc().inotify_rm_watch(self.descriptor, watch)

    def _below(self, name: str) -> list[str]:
        return [place for place in self._watches if place == name or place.startswith(f"{name}/")]

    def _lost(self, watch: int) -> None:
        place = self._places.pop(watch, None)
        if place is not None and self._watches.get(place) == watch:
            del self._watches[place]

    def close(self) -> None:
        """End the watch. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            os.close(self._root)
            self.descriptor = -1


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _listed(handle: int) -> list[tuple[str, bool]]:
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    try:
        with os.scandir(directory) as listing:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    finally:
        os.close(directory)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
