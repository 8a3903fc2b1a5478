"""Where the bytes of a file wait until all of them are there: a little in memory, more in an unnamed file.

A file of a sandbox is written only when its whole content has come, so a sender that hangs up changes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import msgspec

from flux.core.errors import Code, FluxError

MIB = 1 << 20
MEMORY_BYTES = MIB
_LOOK_EVERY_BYTES = 16 * MIB
#: What file systems answer that do not copy within the kernel.
_NOT_HERE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Content for one file: ``data``, or ``size`` bytes of an open file from ``start`` on."""

    size: int
    data: bytes | memoryview = b""
    descriptor: int | None = None
    start: int = 0

    def write_to(self, target: int) -> None:
        """Write the content to an open file from its beginning on."""
        if self.descriptor is None:
            _write(target, memoryview(self.data), 0)
            return
        for position, size in self._pieces():
            self._move(target, position, size)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        for position in range(0, self.size, 64 * MIB):
            yield position, min(64 * MIB, self.size - position)

    def _move(self, target: int, position: int, size: int) -> None:
        assert self.descriptor is not None
        end = position + size
        while position < end:
            try:
                moved = os.copy_file_range(self.descriptor, target, end - position, self.start + position, position)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                data = os.pread(self.descriptor, min(MIB, end - position), self.start + position)
                _write(target, memoryview(data), position)
                moved = len(data)
            if not moved:
                raise OSError(errno.EIO, "what waited to be written became shorter")
            position += moved


def _write(target: int, left: memoryview, position: int) -> None:
    while left:
        written = os.pwrite(target, left, position)
        position += written
        left = left[written:]


class Spool:
    """Takes bytes in and gives them back as ``Body``. One thread at a time.

    Args:
        directory: where an unnamed file is made when there are more than fit in memory.
        reserve_bytes: how much of its file system is left free.
    """

    def __init__(self, directory: str, reserve_bytes: int) -> None:
        self.size = 0
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._memory = bytearray()
        self._descriptor: int | None = None
        self._looked_at = 0

    def fits(self, count: int) -> bool:
        """Tell whether so many more bytes stay in memory, where adding them takes no time."""
        return self._descriptor is None and self.size + count <= MEMORY_BYTES

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes in.

        Raises:
            FluxError: ``exhausted`` if the disk is full, or would soon be.
        """
        if self.fits(len(data)):
            self._memory += data
        else:
            self._add_to_file(data)
        self.size += len(data)

    def _add_to_file(self, data: bytes | bytearray | memoryview) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
                _write(self._descriptor, memoryview(self._memory), 0)
                self._memory = bytearray()
            if self.size >= self._looked_at:
                self._refuse_full(self._descriptor)
                self._looked_at = self.size + _LOOK_EVERY_BYTES
            _write(self._descriptor, memoryview(data), self.size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_space() from error
            raise

    def _refuse_full(self, descriptor: int) -> None:
        found = os.fstatvfs(descriptor)
        if found.f_bavail * found.f_frsize < self._reserve_bytes + _LOOK_EVERY_BYTES:
            raise _no_space()

    def body(self, start: int = 0, end: int | None = None) -> Body:
        """Return what came in, from one position to another; good until ``close``."""
        end = self.size if end is None else end
        if self._descriptor is None:
            return Body(size=end - start, data=memoryview(self._memory)[start:end])
        return Body(size=end - start, descriptor=self._descriptor, start=start)

    def close(self) -> None:
        """Let the bytes go. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _no_space() -> FluxError:
    return FluxError(
        Code.EXHAUSTED, "cannot take the file: not enough disk space is left; nothing was changed, free some space"
    )
