"""How errors are told to E2B's SDKs: status, ``error_code``, and whether to send the same again (spec: e2b, §5).

The SDK repeats whatever is 429, 502, 503 or 504 unless ``Should-Retry`` forbids it, so every error says one or the
other: never where the outcome is unknown, nor where a repeat fails the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from flux.api.rest.errors import STATUSES
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

#: What was asked for, as far as errors differ by it.
Doing = Literal["create", "wake", "pause", "other"]
_MESSAGE_CHARACTERS_MAX = 2000


class Told(msgspec.Struct, frozen=True):
    """An error as the SDK gets it. ``retry``: the very same request may be sent again."""

    status: int
    error_code: str | None = None
    retry: bool = False


class Unsupported(FluxError):
    """Something that E2B has and Flux has not.

    Args:
        what: which cannot be done, as in "cannot …".
        instead: what to do about it.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(Code.NOT_APPLICABLE, f"cannot {what}: that is not supported here; {instead}", {"status": 501})


_CODES = MappingProxyType(
    {
        Code.INVALID: Told(400),
        Code.UNAUTHENTICATED: Told(401),
        Code.DENIED: Told(403),
        Code.NOT_FOUND: Told(404),
        Code.ALREADY_EXISTS: Told(409, "already_exists"),
        Code.CONFLICT: Told(409, "conflict"),
        Code.FENCED: Told(409, "sandbox_fenced"),
        Code.ILLEGAL_STATE: Told(409, "sandbox_illegal_state"),
        Code.EXPIRED: Told(409, "expired"),
        Code.TOO_LARGE: Told(413),
        Code.NOT_APPLICABLE: Told(400, "not_applicable"),
        Code.EXHAUSTED: Told(503, "sandbox_capacity_unavailable", retry=True),
        Code.UNAVAILABLE: Told(503, retry=True),
        Code.UNKNOWN_OUTCOME: Told(504, "outcome_unknown"),
        Code.INTERNAL: Told(500),
    }
)
_CORRUPT = Told(409, "artifact_corrupt")
_RESTORE_FAILED = Told(503, "restore_failed")
_PAUSE_REFUSED = Told(503, "sandbox_pause_refused")
#: What a definite failure of the first start means; nothing is left of the sandbox.
_CREATE_FAILED = MappingProxyType(
    {
        Code.EXHAUSTED: Told(503, "sandbox_capacity_unavailable", retry=True),
        Code.UNAVAILABLE: Told(503, "sandbox_create_failed", retry=True),
        Code.INVALID: Told(400, "sandbox_create_refused"),
        Code.NOT_APPLICABLE: Told(400, "sandbox_create_refused"),
    }
)


def told(error: FluxError, doing: Doing = "other") -> Told:
    """Return what an error is to a client that asked for something."""
    status = error.details.get("status")
    if error.code is Code.EXHAUSTED and "rate" in error.details:
        return Told(429, "rate_limited", retry=True)
    if isinstance(status, int):
        return Told(status, _named(error))
    if error.details.get("reason") == "DataLoss":
        return _CORRUPT
    found = _BY_DOING[doing](error)
    return found or _CODES[error.code]


def _creating(error: FluxError) -> Told | None:
    reason, keyed = error.details.get("reason"), "idempotency_key" in error.details
    if error.code is Code.ALREADY_EXISTS and keyed:
        return Told(409, "idempotency_request_mismatch")
    if reason == "WakeTimedOut":
        if keyed:
            return Told(409, "idempotency_in_progress", retry=True)
        return Told(503, "sandbox_placement_timeout", retry=True)
    if reason in ("NoNode", "OnLostNode"):
        return Told(503, "sandbox_no_compatible_node")
    if error.code is Code.UNKNOWN_OUTCOME:
        return Told(504, "idempotency_outcome_unknown" if keyed else "outcome_unknown")
    if error.details.get("wake") == "failed":
        return _CREATE_FAILED.get(error.code, Told(500, "sandbox_create_failed"))
    return None


def _waking(error: FluxError) -> Told | None:
    reason = error.details.get("reason")
    if reason == "WakeTimedOut":
        # It goes on, and who connects next joins it; a pause that is still under way has to end first.
        pausing = error.details.get("state") == "pausing"
        return Told(409, "sandbox_transitioning") if pausing else Told(504, "outcome_unknown")
    if error.details.get("wake") == "failed" or reason in ("NoNode", "OnLostNode"):
        return _RESTORE_FAILED
    return None


def _pausing(error: FluxError) -> Told | None:
    # The SDK reads 409 as "it is paused already", so nothing else may be one.
    if _CODES[error.code].status == 409 or (error.code is Code.UNKNOWN_OUTCOME and error.details.get("joined")):
        return _PAUSE_REFUSED
    return None


def _doing_other(error: FluxError) -> Told | None:
    return None


_BY_DOING: Mapping[Doing, Callable[[FluxError], Told | None]] = MappingProxyType(
    {"create": _creating, "wake": _waking, "pause": _pausing, "other": _doing_other},
)


def _named(error: FluxError) -> str | None:
    name = error.details.get("error_code")
    return name if isinstance(name, str) else None


def body(error: FluxError, doing: Doing = "other") -> dict[str, Any]:
    """Return an error as E2B's JSON object."""
    found = told(error, doing)
    shape: dict[str, Any] = {"code": found.status, "message": printable(error.message)[:_MESSAGE_CHARACTERS_MAX]}
    return shape if found.error_code is None else {**shape, "error_code": found.error_code}


def reply(error: FluxError, doing: Doing = "other") -> Response:
    """Return the reply that tells an error."""
    found = told(error, doing)
    headers = {"should-retry": "true" if found.retry else "false"}
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    if found.status == 405:
        headers["allow"] = ", ".join(error.details.get("allowed", ()))
    if found.retry and found.status in (429, 503):
        headers["retry-after"] = str(error.details.get("retry_after_seconds", 1))
    content = json.dumps(body(error, doing), ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, found.status, headers, media_type="application/json")


assert STATUSES.keys() == _CODES.keys()
