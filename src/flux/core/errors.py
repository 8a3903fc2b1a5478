"""The one root of all errors a user can meet, with a closed set of codes.

Each code is mapped exactly once to an HTTP status (``api.rest.errors``) and to an exit code (``cli.errors``).
A message says what could not be done, why, and what to do next: "cannot apply changeset c1: 2 paths changed since …".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """What kind of refusal or failure an error is."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    CONFLICT = "conflict"
    FENCED = "fenced"
    ILLEGAL_STATE = "illegal_state"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    NOT_APPLICABLE = "not_applicable"
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"
    UNKNOWN_OUTCOME = "unknown_outcome"
    INTERNAL = "internal"


class FluxError(Exception):
    """An error with a code, a message for people and details for programs.

    Args:
        code: the kind of error.
        message: one sentence: what could not be done, why, what to do next.
        details: JSON-encodable facts, such as the first ten conflicting paths.
    """

    def __init__(self, code: Code, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
