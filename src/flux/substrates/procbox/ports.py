"""Connections to what listens inside of a sandbox: sockets that are made in its network, and used in ours.

A network namespace belongs to a thread, so a thread of its own enters the sandbox's and makes them. A socket stays in
the namespace that it was made in, whose loopback is the sandbox's alone.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time

from flux.core.errors import Code, FluxError
from flux.ports.substrate import CLOSED_PORT, NO_WAY_IN

_NEW_NETWORK = 0x40000000
#: A connection over the loopback is made at once, or the listener's queue is full: the kernel would ask again after a
#: whole second, so new ones are tried before that.
_ATTEMPT_SECONDS = 0.05
_CONNECT_SECONDS = 2.0
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def connect(pidfd: int, port: int) -> socket.socket:
    """Return a connection to a port of the sandbox whose init a descriptor stands for; see ``Instance.connect``."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    full = True
    while full and time.monotonic() < deadline:
        full = False
        for made, (_, address) in zip(_inside(pidfd), _LOOPBACKS, strict=True):
            try:
                if made is not None and _joined(made, address, port):
                    return made
            except TimeoutError:
                full = True
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot connect to port {port} of the sandbox: nothing there takes the connection; start a server in it that "
        "listens at that port",
        {"reason": CLOSED_PORT, "port": port},
    )


def _joined(made: socket.socket, address: str, port: int) -> bool:
    """Tell whether a socket could be connected, and close it if not. Raises ``TimeoutError`` if the queue is full."""
    try:
        made.settimeout(_ATTEMPT_SECONDS)
        made.connect((address, port))
    except TimeoutError:
        made.close()
        raise
    except OSError:
        made.close()
        return False
    made.settimeout(None)
    return True


def _inside(pidfd: int) -> list[socket.socket | None]:
    """Return a socket of each family that the sandbox's network has."""
    made: list[socket.socket | None] = []
    failures: list[BaseException] = []

    def make() -> None:
        try:
            _enter(pidfd)
            made.extend(_new(family) for family, _ in _LOOPBACKS)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=make, name="flux-procbox-port")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made


def _new(family: socket.AddressFamily) -> socket.socket | None:
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise FluxError(Code.EXHAUSTED, f"cannot connect to a port: {error.strerror}") from error


def _enter(pidfd: int) -> None:
    """Move this thread into the network of a process."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(pidfd, _NEW_NETWORK) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.ESRCH:
        raise FluxError(Code.UNAVAILABLE, "cannot connect to a port: the sandbox ended; start it again")
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot connect to a port of the sandbox: its network cannot be entered ({os.strerror(number).lower()}); run "
        "Flux as root, on Linux 5.8 or later",
        {"reason": NO_WAY_IN},
    )
