"""How errors travel on the data plane: as Connect codes from its services, as plain JSON from all else (spec: e2b, §4).

Clients take two texts of a 502 for facts ("was not found": the sandbox does not run; "port is not open"), so no other
error holds them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
from starlette.responses import Response

from flux.core.errors import Code, FluxError

CODES = MappingProxyType(
    {
        Code.INVALID: "invalid_argument",
        Code.UNAUTHENTICATED: "unauthenticated",
        Code.DENIED: "permission_denied",
        Code.NOT_FOUND: "not_found",
        Code.ALREADY_EXISTS: "already_exists",
        Code.CONFLICT: "aborted",
        # The execution that the call was meant for is not the one that runs: what ended with it is out of reach.
        Code.FENCED: "unavailable",
        Code.ILLEGAL_STATE: "failed_precondition",
        Code.EXPIRED: "failed_precondition",
        Code.TOO_LARGE: "resource_exhausted",
        Code.NOT_APPLICABLE: "failed_precondition",
        Code.EXHAUSTED: "resource_exhausted",
        Code.UNAVAILABLE: "unavailable",
        Code.UNKNOWN_OUTCOME: "unknown",
        Code.INTERNAL: "internal",
    }
)
#: The HTTP status of each Connect code in the reply of a call that is no stream.
CONNECT_STATUSES = MappingProxyType(
    {
        "invalid_argument": 400,
        "failed_precondition": 400,
        "unauthenticated": 401,
        "permission_denied": 403,
        "not_found": 404,
        "already_exists": 409,
        "aborted": 409,
        "resource_exhausted": 429,
        "unknown": 500,
        "internal": 500,
        "unimplemented": 501,
        "unavailable": 503,
        "deadline_exceeded": 504,
    }
)
STATUSES = MappingProxyType(
    {
        Code.INVALID: 400,
        Code.UNAUTHENTICATED: 401,
        Code.DENIED: 403,
        Code.NOT_FOUND: 404,
        Code.ALREADY_EXISTS: 409,
        Code.CONFLICT: 409,
        Code.FENCED: 409,
        Code.ILLEGAL_STATE: 409,
        Code.EXPIRED: 409,
        Code.TOO_LARGE: 413,
        Code.NOT_APPLICABLE: 422,
        Code.EXHAUSTED: 507,
        Code.UNAVAILABLE: 503,
        Code.UNKNOWN_OUTCOME: 504,
        Code.INTERNAL: 500,
    }
)
#: What says that the sandbox, or the execution that was meant, does not run: the same for whoever asks.
_GONE = (Code.NOT_FOUND, Code.FENCED)
_AS_IF_FACTS = (("was not found", "is missing"), ("port is not open", "port is closed"))


def connect_error(error: FluxError) -> dict[str, str]:
    """Return an error as Connect writes it."""
    return {"code": CODES[error.code], "message": told(error.message)}


def told(message: str) -> str:
    """Return a message without the texts that clients take for facts about the sandbox."""
    for text, instead in _AS_IF_FACTS:
        message = message.replace(text, instead)
    return message


def plain_reply(error: FluxError) -> Response:
    """Return the reply that tells an error of the data plane outside of its services."""
    status = 429 if error.code is Code.EXHAUSTED and "rate" in error.details else STATUSES[error.code]
    headers = {"retry-after": str(error.details.get("retry_after_seconds", 1))} if status in (429, 503) else None
    return json_reply(status, {"code": status, "message": told(error.message)}, headers)


def gone_reply(sandbox_id: str) -> Response:
    """Return the reply that tells that a sandbox does not run, in the words that clients know."""
    return json_reply(502, {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502})


def refusal(error: FluxError, sandbox_id: str) -> Response:
    """Return the reply to a request that was not admitted to a sandbox's data plane."""
    return gone_reply(sandbox_id) if error.code in _GONE else plain_reply(error)


def json_reply(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a small reply of JSON; no client repeats what failed by itself."""
    more = {"should-retry": "false"} if status >= 400 else {}
    return Response(msgspec.json.encode(body), status, {**more, **(headers or {})}, media_type="application/json")
