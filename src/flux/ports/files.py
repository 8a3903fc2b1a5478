"""Every call that changes a file system on Flux's own behalf, each naming the step it belongs to.

Nothing in ``trees`` or ``store`` changes a file except through this port, so a test can fail, or die at, exactly one
call. All names are relative to an open directory descriptor and no call follows a symbolic link. Names are text in
the lossless form of ``core.paths``. Errors are ``OSError``; the callers wrap them.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from flux.failpoints import Point

Buffer: TypeAlias = bytes | bytearray | memoryview


class Files(Protocol):
    """The mutating system calls."""

    def make_directory(self, step: Point, directory: int, name: str, mode: int = 0o700) -> None:
        """Create a directory. Raises ``FileExistsError`` if the name is taken."""
        ...

    def create(self, step: Point, directory: int, name: str, mode: int = 0o600) -> int:
        """Create a regular file (``O_EXCL``) and return its descriptor, open for reading and writing."""
        ...

    def write(self, step: Point, descriptor: int, data: Buffer) -> None:
        """Write all of ``data`` at the descriptor's position."""
        ...

    def extend(self, step: Point, descriptor: int, size: int) -> None:
        """Make a file that is shorter ``size`` bytes long; what is added is a hole."""
        ...

    def copy(self, step: Point, source: int, target: int) -> None:
        """Copy all content of ``source`` to the empty ``target``, sharing extents where possible and keeping holes."""
        ...

    def link(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        """Create a hard link. Raises ``FileExistsError`` if the name is taken."""
        ...

    def symlink(self, step: Point, target: str, directory: int, name: str) -> None:
        """Create a symbolic link."""
        ...

    def make_node(self, step: Point, directory: int, name: str, mode: int, rdev: int) -> None:
        """Create a FIFO or a device; ``mode`` includes the type."""
        ...

    def rename(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        """Rename, replacing what has the new name."""
        ...

    def rename_new(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        """Rename (``RENAME_NOREPLACE``). Raises ``FileExistsError`` if the new name is taken."""
        ...

    def exchange(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        """Swap two names atomically (``RENAME_EXCHANGE``)."""
        ...

    def unlink(self, step: Point, directory: int, name: str) -> None:
        """Remove a name that is not a directory."""
        ...

    def remove_directory(self, step: Point, directory: int, name: str) -> None:
        """Remove an empty directory."""
        ...

    def set_owner(self, step: Point, directory: int, name: str, uid: int, gid: int) -> None:
        """Change the owner."""
        ...

    def set_mode(self, step: Point, directory: int, name: str, mode: int) -> None:
        """Change the permission bits; not for symbolic links, whose bits mean nothing."""
        ...

    def set_times(self, step: Point, directory: int, name: str, mtime_ns: int) -> None:
        """Set the modification time, in nanoseconds since the epoch; the access time becomes now."""
        ...

    def set_xattr(self, step: Point, directory: int, name: str, key: str, value: bytes) -> None:
        """Set one extended attribute."""
        ...

    def remove_xattr(self, step: Point, directory: int, name: str, key: str) -> None:
        """Remove one extended attribute."""
        ...

    def sync_file(self, step: Point, descriptor: int) -> None:
        """Make a file's content (or a directory's entries) durable."""
        ...

    def sync_filesystem(self, step: Point, descriptor: int) -> None:
        """Make everything written so far to the descriptor's file system durable (``syncfs``)."""
        ...
