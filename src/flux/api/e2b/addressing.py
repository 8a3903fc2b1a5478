"""Which sandbox a request of the data plane is for: one port serves all of them (spec: e2b, §2).

By header (``E2b-Sandbox-Id``, ``E2b-Sandbox-Port``), by host name (``PORT-ID.anything``), or, for a signed file URL,
by nothing but the signature.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from flux.api.rest.access import header
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Scope

#: The port that clients name for files and processes.
DATA_PORT = 49983
FILES = "/files"
_HOST = re.compile(r"([0-9]{1,5})-([a-z0-9]+)\..+", re.DOTALL)
_LABEL = re.compile(r"([0-9]{1,5})-([a-z0-9]{1,64})")
_ID = re.compile(r"[a-z0-9]{1,64}")
_PORT_DIGITS_MAX = 5


class Target(msgspec.Struct, frozen=True):
    """A sandbox and one of its ports. ``sandbox_id`` ``None``: the signature of the URL tells which."""

    sandbox_id: str | None
    port: int = DATA_PORT


def by_host(scope: Scope) -> Target | None:
    """Return the target that a host name says, ``None`` if it is no such name."""
    if scope["type"] != "http":
        return None
    name = (header(scope, b"host") or "").lower().partition(":")[0]
    found = _HOST.fullmatch(name)
    return None if found is None else Target(found[2], int(found[1]))


def user_port(scope: Scope, domain: str | None) -> Target | None:
    """Return the port that a host name right below ``domain`` says; ``None`` for any other name, and for envd's."""
    if domain is None or scope["type"] not in ("http", "websocket"):
        return None
    name = (header(scope, b"host") or "").lower().partition(":")[0].rstrip(".")
    first, _, rest = name.partition(".")
    found = _LABEL.fullmatch(first)
    if found is None or rest != domain.lower().rstrip(".") or int(found[1]) == DATA_PORT:
        return None
    return Target(found[2], int(found[1]))


def is_by_host(scope: Scope) -> bool:
    """Tell whether a request's host name makes it one of the data plane, and of nothing else."""
    return by_host(scope) is not None


def target_of(scope: Scope) -> Target | None:
    """Return what a request is for, ``None`` if it is not for the data plane.

    Raises:
        FluxError: ``invalid`` if host name and headers say different things, or no port.
    """
    if scope["type"] != "http":
        return None
    by_name, named = by_host(scope), header(scope, b"e2b-sandbox-id")
    if named is None:
        if by_name is None and scope["path"] == FILES and b"signature=" in scope["query_string"]:
            return Target(None)
        return by_name
    given = Target(named, _port(header(scope, b"e2b-sandbox-port")))
    if by_name is not None and by_name != given:
        raise FluxError(Code.INVALID, "cannot tell which sandbox is meant: the host name and the headers differ")
    return given


def is_id(sandbox_id: str) -> bool:
    """Tell whether a text could be a sandbox's id."""
    return _ID.fullmatch(sandbox_id) is not None


def _port(text: str | None) -> int:
    if text is None:
        return DATA_PORT
    if not (text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS_MAX):
        raise FluxError(Code.INVALID, "cannot tell which port is meant: E2b-Sandbox-Port is no number of one")
    return int(text)
