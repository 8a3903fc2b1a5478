"""A Files port that forgets what was not synced, as a machine does that loses power.

Every call is made for real and noted with its reversal. ``sync_file`` makes one file's content, or one directory's
entries, durable; ``sync_filesystem`` everything on the file system. ``cut`` takes back what is not durable: contents
always, names and metadata from the newest on, as a journaling file system keeps a beginning of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import TypeAlias

from flux.failpoints import Point
from flux.ports.files import Buffer, Files

Key: TypeAlias = tuple[int, int]


class _Note:
    """One change that is not durable yet: the inodes that must be synced for it, and how it is taken back."""

    def __init__(self, keys: set[Key], undo: Callable[[], object], *, content: bool = False) -> None:
        self.keys = keys
        self.undo = undo
        self.content = content


class ForgetfulFiles:
    """Wraps another Files port.

    Args:
        inner: makes the calls.
        limbo: an open directory for what was removed and may come back. Where the changes are on two file systems, one
            of each.
    """

    def __init__(self, inner: Files, *limbo: int) -> None:
        self._inner = inner
        self._limbo = {os.fstat(descriptor).st_dev: descriptor for descriptor in limbo}
        self._notes: list[_Note] = []
        self._number = 0

    def cut(self, surviving: float) -> None:
        """Lose power.

        Args:
            surviving: which part of the changes to names and metadata that are not durable reached the disk all the
                same, the oldest first: 0 to 1.
        """
        metadata = [note for note in self._notes if not note.content]
        kept = set(map(id, metadata[: round(len(metadata) * surviving)]))
        for note in reversed(self._notes):
            if id(note) not in kept:
                with contextlib.suppress(FileNotFoundError):  # the name itself was lost before
                    note.undo()
        self._notes.clear()

    def make_directory(self, step: Point, directory: int, name: str, mode: int = 0o700) -> None:
        self._inner.make_directory(step, directory, name, mode)
        self._made(directory, name)

    def create(self, step: Point, directory: int, name: str, mode: int = 0o600) -> int:
        descriptor = self._inner.create(step, directory, name, mode)
        self._made(directory, name)
        return descriptor

    def write(self, step: Point, descriptor: int, data: Buffer) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        size = os.fstat(descriptor).st_size
        reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        before = os.pread(reader, len(memoryview(data)), position)
        self._inner.write(step, descriptor, data)
        self._note({_key(reader)}, lambda: _put_back(reader, size, before, position), content=True)

    def extend(self, step: Point, descriptor: int, size: int) -> None:
        before = os.fstat(descriptor).st_size
        self._inner.extend(step, descriptor, size)
        held = os.dup(descriptor)
        self._note({_key(held)}, lambda: os.ftruncate(held, before), content=True)

    def copy(self, step: Point, source: int, target: int) -> None:
        self._inner.copy(step, source, target)
        held = os.dup(target)
        self._note({_key(held)}, lambda: os.ftruncate(held, 0), content=True)

    def link(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        self._inner.link(step, source_directory, source_name, directory, name)
        self._made(directory, name)

    def symlink(self, step: Point, target: str, directory: int, name: str) -> None:
        self._inner.symlink(step, target, directory, name)
        self._made(directory, name)

    def make_node(self, step: Point, directory: int, name: str, mode: int, rdev: int) -> None:
        self._inner.make_node(step, directory, name, mode, rdev)
        self._made(directory, name)

    def rename(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        if _exists(directory, name):
            self._forget(directory, name)
        self.rename_new(step, source_directory, source_name, directory, name)

    def rename_new(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        self._inner.rename_new(step, source_directory, source_name, directory, name)
        source, target = os.dup(source_directory), os.dup(directory)
        self._note(
            {_key(source), _key(target)},
            lambda: os.rename(name, source_name, src_dir_fd=target, dst_dir_fd=source),
        )

    def exchange(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        self._inner.exchange(step, source_directory, source_name, directory, name)
        source, target = os.dup(source_directory), os.dup(directory)
        self._note({_key(source), _key(target)}, lambda: self._inner.exchange(step, source, source_name, target, name))

    def unlink(self, step: Point, directory: int, name: str) -> None:
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_nlink == 1:
            self._forget(directory, name)
            return
        held, inode = os.dup(directory), os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        self._inner.unlink(step, directory, name)
        self._note({_key(held)}, lambda: os.link(f"/proc/self/fd/{inode}", name, dst_dir_fd=held, follow_symlinks=True))

    def remove_directory(self, step: Point, directory: int, name: str) -> None:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            if os.listdir(inside):
                self._inner.remove_directory(step, directory, name)
        finally:
            os.close(inside)
        assert stat.S_ISDIR(status.st_mode)
        self._forget(directory, name)

    def set_owner(self, step: Point, directory: int, name: str, uid: int, gid: int) -> None:
        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
        self._inner.set_owner(step, directory, name, uid, gid)
        self._amended(directory, name, lambda handle: os.chown(handle, before.st_uid, before.st_gid))

    def set_mode(self, step: Point, directory: int, name: str, mode: int) -> None:
        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
        self._inner.set_mode(step, directory, name, mode)
        self._amended(directory, name, lambda handle: os.chmod(handle, stat.S_IMODE(before.st_mode)))

    def set_times(self, step: Point, directory: int, name: str, mtime_ns: int) -> None:
        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
        self._inner.set_times(step, directory, name, mtime_ns)
        self._amended(directory, name, lambda handle: os.utime(handle, ns=(before.st_atime_ns, before.st_mtime_ns)))

    def set_xattr(self, step: Point, directory: int, name: str, key: str, value: bytes) -> None:
        before = _xattr(directory, name, key)
        self._inner.set_xattr(step, directory, name, key, value)
        self._amended(
            directory,
            name,
            lambda handle: os.removexattr(handle, key) if before is None else os.setxattr(handle, key, before),
        )

    def remove_xattr(self, step: Point, directory: int, name: str, key: str) -> None:
        before = _xattr(directory, name, key)
        self._inner.remove_xattr(step, directory, name, key)
        if before is not None:
            self._amended(directory, name, lambda handle: os.setxattr(handle, key, before))

    def sync_file(self, step: Point, descriptor: int) -> None:
        self._inner.sync_file(step, descriptor)
        key = _key(descriptor)
        for note in self._notes:
            note.keys.discard(key)
        self._notes = [note for note in self._notes if note.keys]

    def sync_filesystem(self, step: Point, descriptor: int) -> None:
        self._inner.sync_filesystem(step, descriptor)
        device = os.fstat(descriptor).st_dev
        self._notes = [note for note in self._notes if all(key[0] != device for key in note.keys)]

    def _note(self, keys: set[Key], undo: Callable[[], object], *, content: bool = False) -> None:
        self._notes.append(_Note(keys, undo, content=content))

    def _made(self, directory: int, name: str) -> None:
        held = os.dup(directory)
        self._note({_key(held)}, lambda: self._move_to_limbo(held, name))

    def _forget(self, directory: int, name: str) -> None:
        """Remove a name so that it, and the inode, can come back."""
        held, place = os.dup(directory), self._move_to_limbo(directory, name)
        limbo = self._limbo[os.fstat(directory).st_dev]
        self._note({_key(held)}, lambda: os.rename(place, name, src_dir_fd=limbo, dst_dir_fd=held))

    def _move_to_limbo(self, directory: int, name: str) -> str:
        self._number += 1
        place = str(self._number)
        os.rename(name, place, src_dir_fd=directory, dst_dir_fd=self._limbo[os.fstat(directory).st_dev])
        return place

    def _amended(self, directory: int, name: str, undo: Callable[[str], object]) -> None:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        self._note({_key(handle)}, lambda: undo(f"/proc/self/fd/{handle}"))


def _key(descriptor: int) -> Key:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _put_back(descriptor: int, size: int, before: bytes, position: int) -> None:
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, before, position)


def _xattr(directory: int, name: str, key: str) -> bytes | None:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.getxattr(f"/proc/self/fd/{handle}", key)
    except OSError:
        return None
    finally:
        os.close(handle)
