"""Starts, stops and looks at the daemon of a state directory, from outside of it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from flux.app import lock
from flux.app.config import Config
from flux.cli.invocation import DaemonStatus, Options
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

LOG_NAME = "fluxd.log"
_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_SHOWN_LOG_BYTES = 2000


def status(config: Config) -> DaemonStatus:
    """Tell whether a daemon holds the state directory."""
    holder = lock.peek(config.state_dir)
    running = holder is not None and holder.role == "daemon"
    return _status(config, holder if running else None)


def start(config: Config, options: Options, listen: str | None, role: str) -> DaemonStatus:
    """Start a daemon in the background and return when it answers.

    Raises:
        FluxError: ``already_exists`` if one runs, ``unavailable`` if it ends or does not answer in time.
    """
    lock.prepare_state_directory(config.state_dir)
    holder = lock.peek(config.state_dir)
    if holder is not None and holder.role == "daemon":
        raise FluxError(
            Code.ALREADY_EXISTS,
            f"cannot start a daemon on {printable(config.state_dir)}: one runs already (process {holder.pid}); "
            "stop it with: fluxctl daemon stop",
            {"pid": holder.pid, "url": holder.url},
        )
    process = _spawn(config, options, listen, role)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        holder = lock.peek(config.state_dir)
        if holder is not None and holder.pid == process.pid and holder.url is not None:
            return _status(config, holder)
        if process.poll() is not None:
            raise _not_started(config, f"it ended with the exit code {process.returncode}")
        time.sleep(_POLL_SECONDS)
    process.terminate()
    raise _not_started(config, f"it did not answer within {_START_SECONDS:.0f} seconds")


def stop(config: Config) -> DaemonStatus:
    """Stop the daemon and return when it has ended.

    Raises:
        FluxError: ``not_found`` if none runs, ``denied`` if it belongs to someone else, ``unavailable`` if it does not
            end in time.
    """
    holder = lock.peek(config.state_dir)
    shown = printable(config.state_dir)
    if holder is None or holder.role != "daemon":
        raise FluxError(Code.NOT_FOUND, f"cannot stop the daemon of {shown}: none runs")
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return _status(config, None)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        # The lock goes before the process does, which until its very end has its log open.
        ended, _, _ = select.select([process], [], [], _STOP_SECONDS)
    except ProcessLookupError:
        ended = [process]
    except PermissionError as error:
        raise FluxError(Code.DENIED, f"cannot stop the daemon of {shown}: process {holder.pid} is not yours") from error
    finally:
        os.close(process)
    if ended:
        return _status(config, None)
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot stop the daemon of {shown}: process {holder.pid} still runs after {_STOP_SECONDS:.0f} seconds; "
        f"its log is {printable(_log(config))}",
        {"pid": holder.pid},
    )


def _status(config: Config, holder: lock.Holder | None) -> DaemonStatus:
    if holder is None:
        return DaemonStatus(running=False, state_directory=config.state_dir)
    return DaemonStatus(
        running=True, state_directory=config.state_dir, pid=holder.pid, url=holder.url, log=_log(config)
    )


def _log(config: Config) -> str:
    return os.path.join(config.state_dir, LOG_NAME)


def _spawn(config: Config, options: Options, listen: str | None, role: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flux.app.fluxd", "--state-dir", config.state_dir, "--role", role]
    if options.config is not None:
        command += ["--config", options.config]
    if listen is not None:
        command += ["--listen", listen]
    log = os.open(_log(config), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)


def _not_started(config: Config, reason: str) -> FluxError:
    with open(_log(config), "rb") as stream:  # noqa: PTH123 - the path is text that may not be Unicode
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _SHOWN_LOG_BYTES))
        lines = stream.read().decode("utf-8", "surrogateescape").strip().split("\n")
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot start the daemon: {reason}; its last words: {printable(lines[-1])}; "
        f"its log is {printable(_log(config))}",
        {"log": lines},
    )
