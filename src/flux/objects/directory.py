"""Artifact parts in a directory of this machine, or of a network file system that all nodes mount.

An object is a file. It is written beside the others under a name that no key can have, synced, read back, and only then
given its name by a hard link, which fails if the name is taken; then the directory is synced. What a crash leaves of
unnamed files is removed by the next process that stores something: whoever writes one holds its lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from flux.core.artifact import digest_of
from flux.core.errors import Code, FluxError
from flux.core.objects import check_key
from flux.failpoints import Point
from flux.objects.limits import check_size
from flux.ports.files import Files

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_INCOMING = ".incoming"
_CHUNK = 1 << 20
_ATTEMPTS = 16
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DirectoryStore:
    """Implements ``ports.artifacts.ObjectStore`` in the directory ``path``, which is made when something is stored.

    Args:
        path: absolute; what it lies in must be there.
        files: the mutating file calls.
    """

    def __init__(self, path: str, files: Files) -> None:
        self._path = path
        self._files = files
        self._swept = False

    def put_new(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._wrapped("store", key), ExitStack() as held:
            root = self._open_root(held)
            if self._is_taken(root, key):
                return False
            self._sweep(root)
            incoming = self._enter(held, root, _INCOMING)
            name, descriptor = self._create(held, incoming)
            try:
                self._files.write(Point.OBJECT_WRITE, descriptor, data)
                self._files.sync_file(Point.OBJECT_WRITE, descriptor)
                _confirm(descriptor, data, key)
                return self._publish(root, incoming, name, key)
            finally:
                with contextlib.suppress(OSError):
                    self._files.unlink(Point.OBJECT_WRITE, incoming, name)

    def get(self, key: str) -> bytes:
        return self._read(key, lambda descriptor: _all_of(descriptor, key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._read(key, lambda descriptor: _part_of(descriptor, offset, length))

    def head(self, key: str) -> int | None:
        check_key(key)
        with self._wrapped("look for", key), ExitStack() as held:
            try:
                directory = _walk(held, self._existing_root(held), key.split("/")[:-1])
                return os.stat(key.rpartition("/")[2], dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        top = prefix.strip("/")
        if top:
            check_key(top)
        with self._wrapped("list", prefix or "/"), ExitStack() as held:
            try:
                directory = _walk(held, self._existing_root(held), top.split("/") if top else [])
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted(_found(directory, top))

    def delete(self, key: str) -> None:
        check_key(key)
        parts = key.split("/")
        with self._wrapped("delete", key), ExitStack() as held:
            try:
                directory = _walk(held, self._existing_root(held), parts[:-1])
                self._files.unlink(Point.OBJECT_DELETE, directory, parts[-1])
            except FileNotFoundError:
                return
            self._files.sync_file(Point.OBJECT_DELETE, directory)
            self._remove_empty(held, parts[:-1])

    def _read(self, key: str, action: Callable[[int], bytes]) -> bytes:
        check_key(key)
        with self._wrapped("read", key), ExitStack() as held:
            directory = _walk(held, self._existing_root(held), key.split("/")[:-1])
            descriptor = os.open(key.rpartition("/")[2], _READ, dir_fd=directory)
            held.callback(os.close, descriptor)
            return action(descriptor)

    def _existing_root(self, held: ExitStack) -> int:
        root = os.open(self._path, _DIRECTORY & ~os.O_NOFOLLOW)
        held.callback(os.close, root)
        return root

    def _open_root(self, held: ExitStack) -> int:
        try:
            return self._existing_root(held)
        except FileNotFoundError:
            above = os.open(os.path.dirname(self._path), _DIRECTORY & ~os.O_NOFOLLOW)
            held.callback(os.close, above)
            return self._enter(held, above, os.path.basename(self._path))

    def _enter(self, held: ExitStack, directory: int, name: str) -> int:
        """Open a directory; make it, durably, if there is none."""
        try:
            self._files.make_directory(Point.OBJECT_WRITE, directory, name)
        except FileExistsError:
            pass
        else:
            self._files.sync_file(Point.OBJECT_WRITE, directory)
        inside = os.open(name, _DIRECTORY, dir_fd=directory)
        held.callback(os.close, inside)
        return inside

    def _create(self, held: ExitStack, incoming: int) -> tuple[str, int]:
        """Create a file without a key, and hold its lock: it stays while this process lives."""
        while True:
            name = f".{secrets.token_hex(8)}.new"
            descriptor = self._files.create(Point.OBJECT_WRITE, incoming, name)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                held.callback(os.close, descriptor)
                return name, descriptor
            os.close(descriptor)  # it was taken for a dead one, just before it was locked

    def _is_taken(self, root: int, key: str) -> bool:
        """Tell whether there is such an object, and make sure that it stays: its maker may not have synced it yet."""
        with ExitStack() as held:
            try:
                directory = _walk(held, root, key.split("/")[:-1])
                os.stat(key.rpartition("/")[2], dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return False
            self._files.sync_file(Point.OBJECT_WRITE, directory)
            return True

    def _publish(self, root: int, incoming: int, name: str, key: str) -> bool:
        for _ in range(_ATTEMPTS):
            with ExitStack() as held:
                directory = root
                try:
                    for part in key.split("/")[:-1]:
                        directory = self._enter(held, directory, part)
                    self._files.link(Point.OBJECT_WRITE, incoming, name, directory, key.rpartition("/")[2])
                except FileExistsError:
                    self._files.sync_file(Point.OBJECT_WRITE, directory)
                    return False
                except FileNotFoundError:  # the directory became empty, and was removed, meanwhile
                    continue
                self._files.sync_file(Point.OBJECT_WRITE, directory)
                return True
        raise OSError(errno.EBUSY, "its directory is removed again and again", key)

    def _sweep(self, root: int) -> None:
        """Remove what processes that are gone were writing."""
        if self._swept:
            return
        self._swept = True
        with ExitStack() as held:
            try:
                incoming = _walk(held, root, [_INCOMING])
            except FileNotFoundError:
                return
            for name in os.listdir(incoming):
                with contextlib.suppress(OSError), ExitStack() as locked:
                    descriptor = os.open(name, _READ, dir_fd=incoming)
                    locked.callback(os.close, descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._files.unlink(Point.OBJECT_DELETE, incoming, name)

    def _remove_empty(self, held: ExitStack, parts: Sequence[str]) -> None:
        """Remove the directories that a deletion left empty, but for the first of a key."""
        for depth in range(len(parts) - 1, 0, -1):
            try:
                directory = _walk(held, self._existing_root(held), parts[:depth])
                self._files.remove_directory(Point.OBJECT_DELETE, directory, parts[depth])
            except OSError:  # there is something in it, or another did it
                return

    @contextmanager
    def _wrapped(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(what, key, error) from error

    def _error(self, what: str, key: str, error: OSError) -> FluxError:
        why = error.strerror or str(error)
        details = {"key": key, "errno": error.errno}
        text = f"cannot {what} {key} in the object store {self._path}: {why}"
        if error.errno in _FULL:
            return FluxError(Code.EXHAUSTED, f"{text}: make room there; it is tried again", details)
        if error.errno in _DENIED:
            return FluxError(Code.DENIED, f"{text}: give the user that runs Flux the right to", details)
        if isinstance(error, FileNotFoundError) and what == "read":
            return FluxError(Code.NOT_FOUND, f"{text}: it was never stored there, or has been collected", details)
        return FluxError(Code.UNAVAILABLE, f"{text}: see that it is mounted and works; it is tried again", details)


def _walk(held: ExitStack, root: int, parts: Sequence[str]) -> int:
    directory = root
    for part in parts:
        directory = os.open(part, _DIRECTORY, dir_fd=directory)
        held.callback(os.close, directory)
    return directory


def _found(directory: int, above: str) -> Iterator[tuple[str, int, float]]:
    with os.scandir(directory) as listing:
        names = [entry.name for entry in listing if not entry.name.startswith(".")]
    for name in names:
        key = f"{above}/{name}" if above else name
        with contextlib.suppress(FileNotFoundError), ExitStack() as held:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield from _found(_walk(held, directory, [name]), key)
            elif stat.S_ISREG(status.st_mode):
                yield key, status.st_size, status.st_mtime


def _all_of(descriptor: int, key: str) -> bytes:
    size = os.fstat(descriptor).st_size
    check_size(key, size)
    return _part_of(descriptor, 0, size)


def _part_of(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0 and (part := os.pread(descriptor, min(length, _CHUNK), offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _confirm(descriptor: int, data: bytes, key: str) -> None:
    """Read back what was written, from the disk where the kernel lets go of it."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if os.fstat(descriptor).st_size != len(data) or digest_of(_part_of(descriptor, 0, len(data))) != digest_of(data):
        raise OSError(errno.EIO, "what was written is not what is read back", key)
