"""The mutating system calls for real. Each reaches its failpoint first, so that a test can stop exactly there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

from flux.failpoints import Point, reach
from flux.ports.files import Buffer
from flux.trees import _native

_FICLONE = 0x40049409
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS: declared with a long, they carry an int.
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_FLAGS = struct.Struct("=I4x")
_PROTECTING = 0x10 | 0x20  # immutable, append-only
# What a file system answers that cannot share or move extents itself; the bytes are then copied by hand.
_NOT_HERE = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EBADF, errno.EPERM}
)


class SystemFiles:
    """Implements ``flux.ports.files.Files`` on the running kernel."""

    def make_directory(self, step: Point, directory: int, name: str, mode: int = 0o700) -> None:
        reach(step)
        os.mkdir(name, mode, dir_fd=directory)

    def create(self, step: Point, directory: int, name: str, mode: int = 0o600) -> int:
        reach(step)
        return os.open(name, _CREATE, mode, dir_fd=directory)

    def write(self, step: Point, descriptor: int, data: Buffer) -> None:
        reach(step)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

    def extend(self, step: Point, descriptor: int, size: int) -> None:
        reach(step)
        os.ftruncate(descriptor, size)

    def copy(self, step: Point, source: int, target: int) -> None:
        reach(step)
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            copy_data(source, target)

    def link(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        reach(step)
        os.link(source_name, name, src_dir_fd=source_directory, dst_dir_fd=directory, follow_symlinks=False)

    def symlink(self, step: Point, target: str, directory: int, name: str) -> None:
        reach(step)
        os.symlink(target, name, dir_fd=directory)

    def make_node(self, step: Point, directory: int, name: str, mode: int, rdev: int) -> None:
        reach(step)
        os.mknod(name, mode, rdev, dir_fd=directory)

    def rename(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        reach(step)
        os.rename(source_name, name, src_dir_fd=source_directory, dst_dir_fd=directory)

    def rename_new(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        reach(step)
        _native.renameat2(source_directory, source_name, directory, name, _native.RENAME_NOREPLACE)

    def exchange(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        reach(step)
        _native.renameat2(source_directory, source_name, directory, name, _native.RENAME_EXCHANGE)

    def unlink(self, step: Point, directory: int, name: str) -> None:
        reach(step)
        _remove(os.unlink, directory, name)

    def remove_directory(self, step: Point, directory: int, name: str) -> None:
        reach(step)
        _remove(os.rmdir, directory, name)

    def set_owner(self, step: Point, directory: int, name: str, uid: int, gid: int) -> None:
        reach(step)
        os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)

    def set_mode(self, step: Point, directory: int, name: str, mode: int) -> None:
        reach(step)
        _native.set_mode(directory, name, mode)

    def set_times(self, step: Point, directory: int, name: str, mtime_ns: int) -> None:
        reach(step)
        os.utime(name, ns=(time.time_ns(), mtime_ns), dir_fd=directory, follow_symlinks=False)

    def set_xattr(self, step: Point, directory: int, name: str, key: str, value: bytes) -> None:
        reach(step)
        handle = os.open(name, _HANDLE, dir_fd=directory)
        try:
            os.setxattr(f"/proc/self/fd/{handle}", key, value)
        finally:
            os.close(handle)

    def remove_xattr(self, step: Point, directory: int, name: str, key: str) -> None:
        reach(step)
        handle = os.open(name, _HANDLE, dir_fd=directory)
        try:
            os.removexattr(f"/proc/self/fd/{handle}", key)
        finally:
            os.close(handle)

    def sync_file(self, step: Point, descriptor: int) -> None:
        reach(step)
        os.fsync(descriptor)

    def sync_filesystem(self, step: Point, descriptor: int) -> None:
        reach(step)
        _native.syncfs(descriptor)


def _remove(remove: Callable[..., None], directory: int, name: str) -> None:
    """Remove an entry, also where a flag of it or of its directory (``chattr +i``, ``+a``) stands against that."""
    try:
        remove(name, dir_fd=directory)
    except PermissionError:
        with ExitStack() as flags:
            if not (_unprotected(flags, ".", directory) | _unprotected(flags, name, directory)):
                raise
            remove(name, dir_fd=directory)


def _unprotected(flags: ExitStack, name: str, directory: int) -> bool:
    """Take the flags that forbid changes off an entry, if it has any; ``flags`` puts them back if its inode stays."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # others have none, and opening them may do something
        return False
    found = bytearray(_FLAGS.size)
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
        flags.callback(os.close, descriptor)
        fcntl.ioctl(descriptor, _GET_FLAGS, found)
        (value,) = _FLAGS.unpack(found)
        if not value & _PROTECTING:
            return False
        fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(value & ~_PROTECTING))
    except OSError:  # there are no flags here, or it is not ours to change them
        return False
    flags.callback(_protect, descriptor, value)
    return True


def _protect(descriptor: int, value: int) -> None:
    if os.fstat(descriptor).st_nlink:
        fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(value))


def copy_data(source: int, target: int) -> None:
    """Copy all content of ``source`` to the empty ``target``, leaving holes where ``source`` has them."""
    size = os.fstat(source).st_size
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        offset = os.lseek(source, start, os.SEEK_HOLE)
        _copy_extent(source, target, start, offset)
    os.ftruncate(target, size)


def _copy_extent(source: int, target: int, start: int, end: int) -> None:
    position = start
    while position < end:
        try:
            moved = os.copy_file_range(source, target, end - position, position, position)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            moved = os.pwrite(target, os.pread(source, min(_CHUNK, end - position), position), position)
        if not moved:  # the source shrank meanwhile
            return
        position += moved
