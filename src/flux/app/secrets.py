"""Secrets on disk: made once, each in a file of its own (0600) in the state directory, readable by its owner only."""

from __future__ import annotations

import contextlib
import os

from flux.core.errors import Code, FluxError
from flux.core.paths import printable

_TOKEN_BYTES = 32
_BYTES_MAX = 1024 * 1024


def write(path: str, content: bytes) -> None:
    """Write a secret as a whole, replacing what was there."""
    partial = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(partial, path)


def read(path: str, what: str) -> bytes | None:
    """Return a secret, or nothing if there is none. ``what`` it is stands in errors.

    Raises:
        FluxError: ``denied`` if the file cannot be read, or others may read it.
    """
    shown = printable(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FluxError(Code.DENIED, f"cannot read {what} in {shown}: {reason}") from error
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            raise FluxError(Code.DENIED, f"cannot use {what} in {shown}: others may read it; run: chmod 600 {shown}")
        return os.read(descriptor, _BYTES_MAX)
    finally:
        os.close(descriptor)


def ensure(path: str, what: str, prefix: str) -> str:
    """Return a token, making it if there is none. The caller holds the state directory's lock."""
    present = (read(path, what) or b"").decode("ascii", "replace").strip()
    if present:
        return present
    token = prefix + os.urandom(_TOKEN_BYTES).hex()
    write(path, token.encode("ascii") + b"\n")
    return token
