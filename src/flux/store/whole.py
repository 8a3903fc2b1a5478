"""Whole small files: read at once, replaced all or nothing."""

from __future__ import annotations

import os

from flux.failpoints import Point
from flux.ports.files import Files

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def read(directory: int, name: str) -> bytes:
    """Return the content of a file. Raises ``OSError``."""
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def write_new(files: Files, step: Point, directory: int, name: str, data: bytes, *, durable: bool) -> None:
    """Write a file that is not there yet (0600); ``durable`` syncs its content, not its name."""
    descriptor = files.create(step, directory, name, 0o600)
    try:
        files.write(step, descriptor, data)
        if durable:
            files.sync_file(step, descriptor)
    finally:
        os.close(descriptor)


def replace(files: Files, step: Point, directory: int, name: str, data: bytes) -> None:
    """Replace a file durably: a reader, and a start after a crash, sees the old content or the new."""
    temporary = f".{name}.new"
    try:
        write_new(files, step, directory, temporary, data, durable=True)
    except FileExistsError:
        files.unlink(step, directory, temporary)
        write_new(files, step, directory, temporary, data, durable=True)
    files.rename(step, directory, temporary, directory, name)
    files.sync_file(step, directory)
