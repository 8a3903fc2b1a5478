"""The administrator's token: made on the daemon's first start, kept in the state directory for its owner only."""

from __future__ import annotations

import contextlib
import os

from flux.core.errors import Code, FluxError
from flux.core.paths import printable

TOKEN_NAME = "admin-token"
_TOKEN_BYTES = 32
_TOKEN_BYTES_MAX = 4096


def ensure_admin_token(state_directory: str) -> str:
    """Return the token, making it (0600) if there is none. The caller holds the state directory's lock.

    Raises:
        FluxError: ``denied`` if the file cannot be read, or others may read it.
    """
    present = read_admin_token(state_directory)
    if present is not None:
        return present
    token = "flux_admin_" + os.urandom(_TOKEN_BYTES).hex()
    path = os.path.join(state_directory, TOKEN_NAME)
    partial = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, token.encode("ascii") + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(partial, path)
    return token


def read_admin_token(state_directory: str) -> str | None:
    """Return the token, or nothing if there is none.

    Raises:
        FluxError: ``denied`` if the file cannot be read, or others may read it.
    """
    path = os.path.join(state_directory, TOKEN_NAME)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FluxError(Code.DENIED, f"cannot read the token in {printable(path)}: {reason}") from error
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            shown = printable(path)
            raise FluxError(Code.DENIED, f"cannot use the token in {shown}: others may read it; run: chmod 600 {shown}")
        text = os.read(descriptor, _TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    return text or None
