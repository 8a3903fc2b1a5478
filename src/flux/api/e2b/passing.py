"""Which headers go on between a caller and what listens in a sandbox (spec: e2b, §2).

What belongs to one connection stays with it, what opens Flux stays with Flux, and all else is carried as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

_OF_ONE_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
#: Made anew for the connection inside, or answered by Flux.
_MADE_ANEW = frozenset({b"content-length", b"expect", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})
_CREDENTIALS = frozenset({b"x-api-key", b"x-access-token", b"e2b-traffic-access-token"})
_FLUX, _ROUTE = b"flux-", b"flux-route"
_ADDRESSING = frozenset({b"e2b-sandbox-id", b"e2b-sandbox-port"})
_WEBSOCKET = b"sec-websocket-"
#: The server that answers the caller sets these itself.
_ANSWERED = frozenset({b"date", b"x-request-id"})
_SCHEMES = (b"http", b"https")


def inward(headers: Iterable[tuple[bytes, bytes]], address: str | None, scheme: str) -> Headers:
    """Return the headers that a request has inside of a sandbox, those of its body aside.

    Args:
        headers: as they came, names in lower case.
        address: of the caller's end of the connection.
        scheme: ``http`` or ``https``, by which the caller came here.
    """
    given = list(headers)
    dropped = _OF_ONE_CONNECTION | _MADE_ANEW | _CREDENTIALS | _ADDRESSING | _named(given)
    kept = [(name, value) for name, value in given if name not in dropped and not _is_flux(name, value)]
    before = [value for name, value in given if name == b"x-forwarded-for"]
    origin = next((value.lower() for name, value in given if name == b"x-forwarded-proto"), b"")
    hops = b", ".join([*before, *([] if address is None else [address.encode("latin-1")])])
    kept += [(b"x-forwarded-for", hops)] if hops else []
    kept.append((b"x-forwarded-proto", origin if origin in _SCHEMES else _plain(scheme)))
    kept += [(b"x-forwarded-host", value) for name, value in given if name == b"host"][:1]
    return kept


def outward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that a reply of a sandbox has for the caller; its length is what it says."""
    given = [(name.lower(), value) for name, value in headers]
    dropped = _OF_ONE_CONNECTION | _ANSWERED | _named(given)
    return [(name, value) for name, value in given if name not in dropped and not name.startswith(_FLUX)]


def body_of(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the header that tells a request's body inside: its length, or that it comes in pieces; none without one.

    Who says both is believed in what cannot be false.
    """
    given = dict(headers)
    if b"transfer-encoding" in given:
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", given[b"content-length"])] if b"content-length" in given else []


def without_handshake(headers: Headers) -> Headers:
    """Return headers without those of a WebSocket's opening, which every connection makes for itself."""
    return [(name, value) for name, value in headers if not name.startswith(_WEBSOCKET)]


def _named(headers: Headers) -> set[bytes]:
    """Return the headers that a Connection header names; a message cannot lose what it cannot do without."""
    named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    return named - {b"host", b"content-length", b"content-type"}


def _is_flux(name: bytes, value: bytes) -> bool:
    return name.startswith(_FLUX) or (name == b"authorization" and value.lower().startswith(_ROUTE))


def _plain(scheme: str) -> bytes:
    return b"https" if scheme in ("https", "wss") else b"http"
