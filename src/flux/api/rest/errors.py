"""How errors travel over HTTP: one status per code, one shape for all (spec: sandboxes, spec: speculation)."""

from __future__ import annotations

from types import MappingProxyType

from flux.core.errors import Code, FluxError

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

MEANINGS = MappingProxyType(
    {
        400: "The request is malformed",
        401: "No valid token",
        403: "Not allowed for this role",
        404: "Not found, or not visible to the caller",
        405: "The route exists, but not with this method",
        409: "The state does not allow it, a conflict, expired, or another request is working on it",
        413: "Too large; `details` name the measured size and the limit",
        422: "Not applicable as it is, such as a changeset with unstaged files",
        429: "Too many requests of this caller",
        500: "A fault of Flux; the log tells more",
        503: "Nothing was changed; the request may be repeated",
        504: "The outcome is unknown; `message` says how to find out",
        507: "No space; nothing was changed",
    }
)


def status_of(error: FluxError) -> int:
    """Return the HTTP status of an error; what a rate limit exhausted (``details.rate``) is 429."""
    if error.code is Code.EXHAUSTED and "rate" in error.details:
        return 429
    return STATUSES[error.code]
