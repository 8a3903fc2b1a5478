"""What E2B's clients can see of a sandbox from outside: its metrics, and its log (spec: e2b, E9, E10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from flux.api import views
from flux.api.e2b.endpoint import Answer, Call, Row
from flux.api.present import metrics as shown
from flux.api.rest.routed import headers_of
from flux.core.access import SYSTEM
from flux.core.audit import AuditEvent, AuditFilter, AuditKind
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

if TYPE_CHECKING:
    from flux.api.rest.forward import Forwarder
    from flux.control.platform import Platform
    from flux.core.control import Located

_SANDBOXES_MAX = 100
_LINES_MAX = 1000
_PAGE = 500
_NODE_SECONDS = 10.0
_MILLISECONDS = 1000
#: The last second of the year 9999: no sample is later.
_SECONDS_MAX = 253_402_300_799
_MESSAGE_CHARACTERS_MAX = 2000
#: A paused sandbox whose samples are on its node, or a node that cannot be asked, has none to show.
_NOTHING = (Code.ILLEGAL_STATE, Code.UNAVAILABLE)
_LEVELS = ("debug", "info", "warn", "error")
_ERRORS = frozenset({AuditKind.SANDBOX_LOST, AuditKind.CHANGESET_FAILED})
_WARNINGS = frozenset({AuditKind.CHANGESET_CONFLICT, AuditKind.CHANGESET_EXPIRED})
#: What a line tells first, if it has it: the command, the file.
_FIRST = ("command", "argv", "path", "name")


class Metrics:
    """The metrics of sandboxes, wherever they run.

    Args:
        forwarder: knows how to reach other nodes; ``None`` where there are none.
    """

    def __init__(self, forwarder: Forwarder | None) -> None:
        self._forwarder = forwarder

    def one(self, call: Call) -> Answer:
        """Return all samples of a sandbox between ``start`` and ``end``, in seconds since the epoch."""
        call.platform.get_sandbox(call.actor, call.sandbox)
        start, end = _number(call, "start"), _number(call, "end")
        found = self._samples(call, call.sandbox, start, end)
        return Answer(body=[_metric(item) for item in found])

    def several(self, call: Call) -> Answer:
        """Return the newest sample of each sandbox of ``sandbox_ids``; who has none, or is not there, is left out."""
        asked = [name for text in call.query.get("sandbox_ids", ()) for name in text.split(",") if name]
        if not asked or len(asked) > _SANDBOXES_MAX:
            raise FluxError(
                Code.INVALID,
                f"cannot read sandbox_ids: it names {len(asked)} sandboxes; name 1 to {_SANDBOXES_MAX}",
            )
        newest = {}
        for name in dict.fromkeys(asked):
            try:
                found = self._samples(call, name, None, None)
            except FluxError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
                continue
            if found:
                newest[name] = _metric(found[-1])
        return Answer(body={"sandboxes": newest})

    def _samples(self, call: Call, name: str, start: int | None, end: int | None) -> list[views.MetricView]:
        try:
            located = call.platform.elsewhere(call.actor, name)
            if located is None or self._forwarder is None:
                return shown(*call.platform.metrics(call.actor, name, start, end)).items
            return self._of_node(self._forwarder, located, call, start, end)
        except FluxError as error:
            if error.code in _NOTHING:
                return []
            raise

    def _of_node(
        self, forwarder: Forwarder, located: Located, call: Call, start: int | None, end: int | None
    ) -> list[views.MetricView]:
        import httpx

        asked = {
            name: datetime.fromtimestamp(min(value, _SECONDS_MAX), UTC).isoformat()
            for name, value in (("start", start), ("end", end))
            if value is not None
        }
        try:
            reply = httpx.get(
                f"{located.address.rstrip('/')}/v1/sandboxes/{located.sandbox_id}.{located.generation}/metrics",
                params=asked,
                headers=headers_of(located, call.actor),
                verify=forwarder.context(located) or True,
                timeout=_NODE_SECONDS,
            )
            reply.raise_for_status()
        except httpx.HTTPError as error:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot read the metrics on the node {located.node}: try again",
                {"node": located.node},
            ) from error
        return msgspec.json.decode(reply.content, type=views.MetricList).items


def logs(call: Call) -> Answer:
    """Return what the audit log has about a sandbox, as E2B's log entries.

    ``cursor``: milliseconds since the epoch to begin at; ``direction``: ``forward`` (oldest first, the default) or
    ``backward``; ``limit``: 1 to 1000; ``level``: the least; ``search``: part of the message.
    """
    sandbox_id = call.platform.get_sandbox(call.actor, call.sandbox).sandbox.id
    limit = _number(call, "limit")
    limit = _LINES_MAX if limit is None else max(0, min(limit, _LINES_MAX))
    cursor, backward = _number(call, "cursor"), _backward(call)
    entries = (_entry(line) for line in _lines(call.platform, sandbox_id) if _is_due(line, cursor, backward=backward))
    wanted = _wanted(entries, call.one("level"), call.one("search"))
    if backward:
        return Answer(body={"logs": list(reversed(deque(wanted, limit)))})
    return Answer(body={"logs": [entry for _, entry in zip(range(limit), wanted, strict=False)]})


def old_logs(call: Call) -> Answer:
    """Return the same as older clients read it: ``start`` in milliseconds, each line a text beside its entry."""
    sandbox_id = call.platform.get_sandbox(call.actor, call.sandbox).sandbox.id
    limit, start = _number(call, "limit"), _number(call, "start")
    limit = _LINES_MAX if limit is None else max(0, min(limit, _LINES_MAX))
    entries = (_entry(line) for line in _lines(call.platform, sandbox_id) if _is_due(line, start, backward=False))
    found = [entry for _, entry in zip(range(limit), entries, strict=False)]
    lines = [{"timestamp": entry["timestamp"], "line": entry["message"]} for entry in found]
    return Answer(body={"logs": lines, "logEntries": found})


def rows(forwarder: Forwarder | None) -> tuple[Row, ...]:
    """Return the routes. That of several sandboxes stands before any route with a sandbox's id in its place."""
    metrics = Metrics(forwarder)
    one = "/sandboxes/{sandbox}"
    return (
        Row(method="GET", path="/sandboxes/metrics", operation="e2b.metrics", handler=metrics.several),
        Row(method="GET", path=one + "/metrics", operation="e2b.metrics", handler=metrics.one),
        Row(method="GET", path=one + "/logs", operation="e2b.logs", handler=old_logs),
        Row(method="GET", path="/v2" + one + "/logs", operation="e2b.logs", handler=logs),
    )


def _metric(item: views.MetricView) -> dict[str, Any]:
    return {
        "timestamp": item.at,
        "timestampUnix": int(datetime.fromisoformat(item.at).timestamp()),
        "cpuCount": max(1, round(item.cpu_count)),
        "cpuUsedPct": item.cpu_used_pct,
        "memUsed": item.memory_used,
        "memTotal": item.memory_total,
        "memCache": item.memory_cache,
        "diskUsed": item.disk_used,
        "diskTotal": item.disk_total,
    }


def _lines(platform: Platform, sandbox_id: str) -> Iterator[AuditEvent]:
    """Yield the lines about a sandbox that the caller may see; the log itself is for reviewers only."""
    filters, cursor = AuditFilter(sandbox_id=sandbox_id), None
    while True:
        page = platform.audit(SYSTEM, filters, _PAGE, cursor)
        yield from page.items
        if len(page.items) < _PAGE:
            return
        cursor = page.next_cursor


def _is_due(line: AuditEvent, cursor: int | None, *, backward: bool) -> bool:
    if cursor is None:
        return True
    moment = int(line.time * _MILLISECONDS)
    return moment <= cursor if backward else moment >= cursor


def _entry(line: AuditEvent) -> dict[str, Any]:
    told = next((_text(line.details[name]) for name in _FIRST if line.details.get(name)), "")
    message = f"{line.event} by {line.actor}" + (f": {told}" if told else "")
    fields = {"event": line.event, "actor": line.actor, **{name: _text(value) for name, value in line.details.items()}}
    return {
        "timestamp": datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "message": printable(message)[:_MESSAGE_CHARACTERS_MAX],
        "level": _level(line.event),
        "fields": {name: printable(value)[:_MESSAGE_CHARACTERS_MAX] for name, value in fields.items()},
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _level(event: str) -> str:
    return "error" if event in _ERRORS else "warn" if event in _WARNINGS else "info"


def _wanted(entries: Iterable[Mapping[str, Any]], level: str | None, search: str | None) -> Iterator[Mapping[str, Any]]:
    if level is not None and level not in _LEVELS:
        raise FluxError(Code.INVALID, f"cannot read level: it is one of {', '.join(_LEVELS)}", {"field": "level"})
    least = _LEVELS.index(level or "debug")
    for entry in entries:
        if _LEVELS.index(entry["level"]) >= least and (search is None or search in entry["message"]):
            yield entry


def _backward(call: Call) -> bool:
    direction = call.one("direction") or "forward"
    if direction not in ("forward", "backward"):
        raise FluxError(Code.INVALID, "cannot read direction: it is forward or backward", {"field": "direction"})
    return direction == "backward"


def _number(call: Call, name: str) -> int | None:
    text = call.one(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise FluxError(Code.INVALID, f"cannot read {name}: it is not a whole number from 0 on", {"field": name})
    return int(text)
