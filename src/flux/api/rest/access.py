"""Who is calling: the owner of a unix socket's other end, or the bearer of a token (spec: access)."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from flux.api.operations import Operation
from flux.core.access import Actor, Role, permit
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Scope

    from flux.api.rates import RequestRates
    from flux.control.platform import Platform

_CREDENTIALS = struct.Struct("3i")
_ANYONE = Actor(name="anyone", role=Role.USER)
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
#: What stands before the domain of a daemon behind a proxy: its API, or a port of a sandbox (spec: e2b).
_BEFORE_DOMAIN = re.compile(r"api|sandbox|[0-9]{1,5}-[a-z0-9]+")


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The other end of a connection: the user id behind a unix socket, and whether it came in over loopback."""

    uid: int | None = None
    loopback: bool = False


def peer_of(connection: Any) -> Peer:
    """Return the peer of an accepted socket, as the kernel tells it."""
    if connection.family == socket.AF_UNIX:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Peer(uid=_CREDENTIALS.unpack(raw)[1], loopback=True)
    return Peer(loopback=is_loopback(connection.getsockname()[0]))


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address is this machine's loopback."""
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def address_of(scope: Scope) -> str | None:
    """Return the address of the other end; ``None`` at the unix socket."""
    client = scope.get("client")
    return None if scope["state"]["peer"].uid is not None or client is None else str(client[0])


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def host_of(scope: Scope) -> str:
    """Return the name or address in the Host header, without its port."""
    host = header(scope, b"host") or ""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def refuse_foreign_host(scope: Scope, domain: str | None = None) -> None:
    """Refuse a request over loopback for a name that is not local: a page that rebound its own name to this machine.

    Args:
        scope: the request.
        domain: the daemon's own domain, whose names a proxy on this machine sends on.

    Raises:
        FluxError: ``denied``.
    """
    peer: Peer = scope["state"]["peer"]
    if peer.uid is not None or not peer.loopback:
        return
    name = host_of(scope)
    if not is_loopback(name) and not is_of_domain(name, domain):
        raise FluxError(
            Code.DENIED,
            "cannot answer for this Host header: over loopback only localhost, 127.0.0.1, [::1] and the names of the "
            "configured domain are served",
        )


def is_of_domain(name: str, domain: str | None) -> bool:
    """Tell whether a host's name is one that the daemon of ``domain`` has."""
    if domain is None:
        return False
    first, _, rest = name.lower().rstrip(".").partition(".")
    return rest == domain.lower().rstrip(".") and _BEFORE_DOMAIN.fullmatch(first) is not None


def user_name(uid: int) -> str:
    """Return what this machine calls a user, the same with a daemon and without."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def actor_of(platform: Platform, scope: Scope, rates: RequestRates) -> Actor:
    """Return who calls. Asks the store; not for the event loop.

    Raises:
        FluxError: ``unauthenticated``; ``denied`` for another user's process at the socket; ``exhausted`` for one who
            asks too often.
    """
    peer: Peer = scope["state"]["peer"]
    if peer.uid is not None:
        if peer.uid not in (0, os.geteuid()):
            raise FluxError(Code.DENIED, f"cannot serve the user with id {peer.uid} here: use a key over HTTP")
        return Actor(name=user_name(peer.uid), role=Role.ADMIN)
    authorization = header(scope, b"authorization")
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise FluxError(
            Code.UNAUTHENTICATED,
            "cannot tell who is calling: send a key in the header Authorization: Bearer KEY; fluxctl takes it from "
            "FLUX_TOKEN or --token",
        )
    actor = rates.guesses.authenticate(address_of(scope), token.strip(), platform.authenticate)
    rates.check_actor(actor)
    return actor


def admit(platform: Platform, scope: Scope, operation: Operation, rates: RequestRates) -> Actor:
    """Return who calls if the role may do ``operation``. Asks the store; not for the event loop.

    Raises:
        FluxError: ``unauthenticated``, ``denied``, ``exhausted``.
    """
    if operation.open:
        return _ANYONE
    actor = actor_of(platform, scope, rates)
    permit(actor, operation.name)
    return actor
