"""E2B's lists of sandboxes, filtered and in pages (spec: e2b, §3)."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import parse_qsl, unquote

from flux.api.e2b import shapes
from flux.api.e2b.endpoint import Answer, Call, Row
from flux.core.control import SandboxFilter
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.paths import printable

NEXT_TOKEN = "x-next-token"
_LIMIT = 100
_LIMIT_MAX = 1000
_DIGITS_MAX = 9
#: What has no public state of its own is shown as what it is for its user: not to be used right now.
_STATES = {
    "running": (ControlState.RUNNING,),
    "paused": tuple(state for state in ControlState if state is not ControlState.RUNNING),
}


def page(call: Call) -> Answer:
    """List sandboxes, a page at a time."""
    found = call.platform.list_sandboxes(call.actor, limit_of(call), call.one("nextToken"), _wanted(call))
    room = call.platform.room()
    headers = {} if found.next_cursor is None else {NEXT_TOKEN: found.next_cursor}
    return Answer(body=[shapes.listed(status, room) for status in found.items], headers=headers)


def running(call: Call) -> Answer:
    """List all running sandboxes in one reply."""
    wanted = SandboxFilter(states=_STATES["running"], metadata=_metadata(call), lived=True)
    room, items, cursor = call.platform.room(), [], None
    while True:
        found = call.platform.list_sandboxes(call.actor, _LIMIT_MAX, cursor, wanted)
        items += [shapes.listed(status, room) for status in found.items]
        cursor = found.next_cursor
        if cursor is None:
            return Answer(body=items)


def limit_of(call: Call) -> int:
    """Return how many items a page has. Raises ``invalid``."""
    text = call.one("limit")
    if text is None:
        return _LIMIT
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX or not 1 <= int(text) <= _LIMIT_MAX:
        raise _bad("limit", text, f"1 to {_LIMIT_MAX}")
    return int(text)


def _wanted(call: Call) -> SandboxFilter:
    order = call.one("order") or "desc"
    if order not in ("asc", "desc"):
        raise _bad("order", order, "asc or desc")
    return SandboxFilter(
        states=_states(call),
        metadata=_metadata(call),
        template=call.one("template"),
        started_after=_moment(call.one("startedAfter")),
        lived=True,
        oldest_first=order == "asc",
    )


def _states(call: Call) -> tuple[ControlState, ...] | None:
    names = [name.strip() for value in call.query.get("state", ()) for name in value.split(",") if name.strip()]
    for name in names:
        if name not in _STATES:
            raise _bad("state", name, "running, paused, or both")
    return tuple(state for name in dict.fromkeys(names) for state in _STATES[name]) or None


def _metadata(call: Call) -> dict[str, str]:
    """Return the pairs to look for: a query string within the query, whose names and values are quoted once more."""
    text = call.one("metadata")
    try:
        pairs = parse_qsl(text or "", keep_blank_values=True, strict_parsing=bool(text))
    except ValueError:
        raise _bad("metadata", text or "", "NAME=VALUE pairs joined by &, percent-encoded") from None
    return {unquote(name): unquote(value) for name, value in pairs}


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))
        return found.timestamp()
    except (ValueError, OverflowError):
        raise _bad("startedAfter", text, "a time such as 2026-01-31T12:00:00Z") from None


def _bad(name: str, value: str, wanted: str) -> FluxError:
    return FluxError(
        Code.INVALID, f"cannot list: {name} is {printable(value)[:80]!r}, and {wanted} is wanted", {"field": name}
    )


ROWS = (
    Row(method="GET", path="/v2/sandboxes", operation="sandbox.list", handler=page),
    Row(method="GET", path="/sandboxes", operation="sandbox.list", handler=running),
)
