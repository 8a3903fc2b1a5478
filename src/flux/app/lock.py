"""The state directory and its one writer.

Two processes never write one state directory at once: who opens an engine on it holds ``<state_dir>/lock``. The kernel
releases the lock with the process, however that ends; the text inside only tells others who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import printable

Role = Literal["daemon", "embedded"]

LOCK_NAME = "lock"
_POLL_SECONDS = 0.02
_HOLDER_BYTES_MAX = 65536
_NOBODY = b"\n"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a state directory. ``url`` is where a daemon that is ready listens."""

    pid: int
    role: Role
    command: str
    url: str | None = None


class StateLock:
    """The held lock; ``release`` gives it back."""

    def __init__(self, descriptor: int, holder: Holder) -> None:
        self._descriptor: int | None = descriptor
        self._holder = holder
        _write(descriptor, msgspec.json.encode(holder))

    def announce(self, url: str) -> None:
        """Tell others where this daemon listens, once it does."""
        if self._descriptor is not None:
            _write(self._descriptor, msgspec.json.encode(msgspec.structs.replace(self._holder, url=url)))

    def release(self) -> None:
        """Let the next one in. Idempotent."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            # Who takes the lock next must not be taken for this process meanwhile.
            _write(descriptor, _NOBODY)
        finally:
            os.close(descriptor)


def _write(descriptor: int, text: bytes) -> None:
    """Replace the file's text in place: it keeps its block, so that a full disk does not lock everybody out."""
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def prepare_state_directory(path: str) -> None:
    """Create the state directory (0700) if it is absent and refuse one that others could change.

    Raises:
        FluxError: ``invalid`` (not a directory), ``denied`` (another owner, writable by others, not writable).
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refusal(Code.INVALID, path, "something that is not a directory is in its place") from error
    except OSError as error:
        raise _refusal(_code(error), path, _reason(error)) from error
    if status.st_uid != os.geteuid():
        raise _refusal(Code.DENIED, path, f"it belongs to the user with id {status.st_uid}, not to you")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        shown = printable(path)
        raise FluxError(
            Code.DENIED,
            f"cannot use the state directory {shown}: other users may write to it; run: chmod 700 {shown}",
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise _refusal(Code.DENIED, path, "it is not readable and writable for you")


def try_lock(state_directory: str, role: Role, command: str) -> StateLock | Holder | None:
    """Take the lock if it is free; else tell who holds it, or ``None`` while that is not written down.

    Args:
        state_directory: a prepared state directory.
        role: what this process is.
        command: how to name this process to whoever has to wait for it; free of arguments, which may hold secrets.

    Raises:
        FluxError: ``denied``, ``exhausted`` or ``unavailable`` if the lock file cannot be opened or written.
    """
    path = os.path.join(state_directory, LOCK_NAME)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _refusal(_code(error), state_directory, f"its file {LOCK_NAME}: {_reason(error)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        try:
            if error.errno != errno.EWOULDBLOCK:
                raise _refusal(_code(error), state_directory, f"cannot lock it: {_reason(error)}") from error
            return _read_holder(descriptor)
        finally:
            os.close(descriptor)
    try:
        return StateLock(descriptor, Holder(pid=os.getpid(), role=role, command=command))
    except OSError as error:
        os.close(descriptor)
        raise _refusal(_code(error), state_directory, f"its file {LOCK_NAME}: {_reason(error)}") from error


def peek(state_directory: str) -> Holder | None:
    """Return who holds the lock, if anybody does and has said so; takes nothing and creates nothing."""
    try:
        descriptor = os.open(os.path.join(state_directory, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def acquire(
    state_directory: str,
    role: Role,
    command: str,
    *,
    wait_seconds: float,
    waiting: Callable[[Holder | None], None],
) -> StateLock | Holder:
    """Take the lock, waiting while another ``embedded`` command holds it; return the daemon that holds it instead.

    Args:
        state_directory: a prepared state directory.
        role: what this process is.
        command: how to name this process to whoever has to wait for it.
        wait_seconds: how long to wait for an embedded command to end.
        waiting: called once when waiting begins, with who is waited for.

    Raises:
        FluxError: ``unavailable`` if an embedded command still holds it after ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    told = False
    while True:
        result = try_lock(state_directory, role, command)
        if isinstance(result, StateLock) or (result is not None and result.role == "daemon"):
            return result
        if time.monotonic() >= deadline:
            raise _busy(state_directory, result)
        if not told:
            waiting(result)
            told = True
        time.sleep(_POLL_SECONDS)


def _busy(state_directory: str, holder: Holder | None) -> FluxError:
    who = "another command" if holder is None else f"{printable(holder.command)!r} (process {holder.pid})"
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot use the state directory {printable(state_directory)}: {who} is working on it; try again when it has "
        "ended, or run commands side by side through a daemon: fluxctl daemon start",
        {} if holder is None else {"pid": holder.pid, "command": holder.command},
    )


def _read_holder(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _HOLDER_BYTES_MAX, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _code(error: OSError) -> Code:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
        return Code.EXHAUSTED
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP):
        return Code.DENIED
    return Code.UNAVAILABLE


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _refusal(code: Code, path: str, reason: str) -> FluxError:
    return FluxError(
        code, f"cannot use the state directory {printable(path)}: {reason}; choose another with --state-dir DIR"
    )
