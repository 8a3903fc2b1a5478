"""Facts of a reply in words: sizes, times, entries, endings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from flux.core.paths import printable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def line(text: str) -> str:
    """Return a line of text safe to show; unlike in a name, its tabs and backslashes stand for themselves."""
    return "\t".join(printable(part).replace("\\\\", "\\") for part in text.split("\t"))


def size(count: int) -> str:
    """Return bytes in words: ``12 B``, ``1.5 MiB``."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def number(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 entry``, ``3 entries``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def seconds(count: float) -> str:
    """Return a duration in the two largest units that matter."""
    if count < _MINUTE:
        return f"{count:.1f} s"
    if count < _HOUR:
        return f"{int(count // _MINUTE)} min {int(count % _MINUTE)} s"
    if count < _DAY:
        return f"{int(count // _HOUR)} h {int(count % _HOUR // _MINUTE)} min"
    return f"{int(count // _DAY)} d {int(count % _DAY // _HOUR)} h"


def until(moment: str, now: float) -> str:
    """Return how far an RFC 3339 time is ahead of ``now`` (seconds since the epoch), or how long ago it was."""
    left = datetime.fromisoformat(moment).timestamp() - now
    return f"in {seconds(left)}" if left > 0 else f"{seconds(-left)} ago"


def local_time(moment: str) -> str:
    """Return an RFC 3339 time in the reader's own zone, to the second."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ending(reply: Mapping[str, Any]) -> str:
    """Tell how a command ended."""
    after = f"after {seconds(reply['duration_ms'] / 1000)}"
    if reply.get("timed_out"):
        return f"killed {after}: it took longer than its time-out"
    if reply.get("signal") is not None:
        return f"killed by signal {reply['signal']} {after}"
    if reply.get("exit_code") is None:
        return "no command was run"
    return f"exit code {reply['exit_code']} {after}"


def entry(side: Mapping[str, Any]) -> str:
    """Describe one side of a change in a few words."""
    kind = str(side["type"])
    if kind == "file":
        return f"file, {size(side['size'])}, mode {side['mode']}"
    if kind == "symlink":
        return f"link to {printable(str(side.get('target', '')))}"
    return f"{kind.replace('_', ' ')}, mode {side['mode']}"


def difference(change: Mapping[str, Any]) -> str:
    """Tell what of an entry changed."""
    before, after = change["before"], change["after"]
    return ", ".join(_attribute(name, before, after) for name in change.get("attributes", ()))


def _attribute(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    sides: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "content": lambda side: size(side["size"]),
        "mode": lambda side: str(side["mode"]),
        "owner": lambda side: f"{side['uid']}:{side['gid']}",
        "target": lambda side: printable(str(side.get("target", ""))),
        "type": entry,
        "xattrs": lambda side: "{" + ", ".join(printable(key) for key in sorted(side.get("xattrs", {}))) + "}",
    }
    if name not in sides:
        return {"rdev": "device number", "links": "hard links"}.get(name, printable(name))
    describe = sides[name]
    title = {"xattrs": "extended attributes"}.get(name, name)
    return f"{title} {describe(before)} → {describe(after)}"
