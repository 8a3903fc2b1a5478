"""Where the daemon listens, and who could reach it there."""

from __future__ import annotations

import contextlib
import os
import socket

import msgspec

from flux.api.rest.access import is_loopback
from flux.api.unix import address_of
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

_PORT_MAX = 65535
_SOCKET_MASK = 0o177


class Address(msgspec.Struct, frozen=True):
    """A host's name or address and a port; port 0 lets the kernel choose."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT`` or ``[IPV6]:PORT``.

        Raises:
            FluxError: ``invalid``.
        """
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
            raise FluxError(
                Code.INVALID, f"cannot listen on {printable(text)!r}: write HOST:PORT, such as 127.0.0.1:7788"
            )
        return cls(host, int(port))

    @property
    def text(self) -> str:
        """``HOST:PORT``, or ``[IPV6]:PORT``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def require_local(self, *, insecure: bool, encrypted: bool) -> None:
        """Refuse an address that other machines reach without TLS, unless that is wanted (spec: access).

        Raises:
            FluxError: ``denied``.
        """
        if is_loopback(self.host) or insecure or encrypted:
            return
        raise FluxError(
            Code.DENIED,
            f"cannot listen on {printable(self.host)}: tokens would travel in the clear; give --tls-cert and "
            "--tls-key, or --insecure if something else encrypts",
        )


def bind_tcp(address: Address) -> socket.socket:
    """Return a socket bound to ``address`` that does not listen yet.

    Raises:
        FluxError: ``unavailable``, for instance if the port is taken.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refusal(address, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        listener.close()
        raise _refusal(address, error) from error
    return listener


def _refusal(address: Address, error: OSError) -> FluxError:
    reason = (error.strerror or str(error)).lower()
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot listen on {printable(address.host)}:{address.port}: {reason}; choose another with --listen HOST:PORT",
    )


def bind_unix(path: str) -> socket.socket:
    """Return a unix socket (0600) bound to ``path``, replacing one that a dead daemon left.

    Only for the holder of the state directory's lock.

    Raises:
        FluxError: ``unavailable``.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_SOCKET_MASK)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with address_of(path) as name:
            listener.bind(name)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise FluxError(Code.UNAVAILABLE, f"cannot listen on {printable(path)}: {reason}") from error
    finally:
        os.umask(before)
    return listener


def url_of(listener: socket.socket, host: str, *, encrypted: bool) -> str:
    """Return the URL at which a bound socket answers; ``host`` is how it was asked for."""
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{port}"
