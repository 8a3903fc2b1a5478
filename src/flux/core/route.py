"""Who executes a sandbox: generations, attempts and the route evidence that every call about one carries (§2)."""

from __future__ import annotations

import re

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import printable

#: Generations are 1 … 2^63-1, minted by the control store only, never reused, never lowered.
GENERATION_MAX = 2**63 - 1

_SANDBOX_ID = re.compile(r"[a-z0-9]{1,40}")
_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Route evidence: which execution a call is about.

    ``attempt_id``: the try at starting it. ``pod_uid``: its holder; a fresh id on the direct placement.
    """

    generation: int
    attempt_id: str
    pod_uid: str


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The pair that names an execution where its attempt does not matter: suspend, teardown, exec, files."""

    generation: int
    pod_uid: str


def checked_sandbox_id(sandbox_id: str) -> str:
    """Return a sandbox id that is one. Raises ``FluxError`` ``invalid``."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise _invalid("the sandbox id", sandbox_id, "1 to 40 of a-z and 0-9")
    return sandbox_id


def checked_generation(generation: int) -> int:
    """Return a generation that is one. Raises ``FluxError`` ``invalid``."""
    if not 1 <= generation <= GENERATION_MAX:
        raise _invalid("the generation", str(generation), "1 to 2^63-1")
    return generation


def checked_token(value: str, field: str) -> str:
    """Return an attempt id or pod UID that is one. Raises ``FluxError`` ``invalid``."""
    if not _TOKEN.fullmatch(value):
        raise _invalid(f"the {field}", value, "1 to 64 letters, digits, dots, dashes or underscores")
    return value


def checked_route(route: Route) -> Route:
    """Return route evidence whose every part is in form. Raises ``FluxError`` ``invalid``."""
    checked_generation(route.generation)
    checked_token(route.attempt_id, "attempt_id")
    checked_token(route.pod_uid, "pod_uid")
    return route


def _invalid(what: str, value: str, wanted: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot take {what} {printable(value)[:80]!r}: it is {wanted}")
