"""How errors leave the program: one exit code per code, one line (or one JSON object) on stderr.

The codes lie in the range of ``sysexits.h`` (64 to 78), so that they are not mistaken for the small codes that commands
in a sandbox usually end with. A command of ``exec`` may still end with one of them; the line that begins with
``fluxctl:`` on stderr tells the difference.
"""

from __future__ import annotations

import sys

from flux.cli.show import words
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

EXIT_CODES: dict[Code, int] = {
    Code.INVALID: 64,
    Code.NOT_APPLICABLE: 65,
    Code.NOT_FOUND: 66,
    Code.UNAUTHENTICATED: 67,
    Code.FENCED: 68,
    Code.UNAVAILABLE: 69,
    Code.INTERNAL: 70,
    Code.EXHAUSTED: 71,
    Code.TOO_LARGE: 72,
    Code.ALREADY_EXISTS: 73,
    Code.UNKNOWN_OUTCOME: 74,
    Code.CONFLICT: 75,
    Code.ILLEGAL_STATE: 76,
    Code.DENIED: 77,
    Code.EXPIRED: 78,
}
TIMED_OUT = 124
INTERRUPTED = 130
SIGNAL_BASE = 128

_SHOWN_CONFLICTS = 10


def report(error: FluxError, *, as_json: bool) -> int:
    """Write ``error`` to stderr and return the exit code that belongs to it."""
    if as_json:
        import msgspec

        body = {"code": error.code.value, "message": error.message, "details": error.details}
        _write(msgspec.json.encode(body, enc_hook=str).decode("utf-8"))
    else:
        _write(f"fluxctl: {words.line(error.message)}")
        for line in _conflict_lines(error):
            _write(f"  {line}")
    return EXIT_CODES[error.code]


def _conflict_lines(error: FluxError) -> list[str]:
    conflicts = error.details.get("conflicts")
    if not isinstance(conflicts, list):
        return []
    return [_conflict_line(item) for item in conflicts[:_SHOWN_CONFLICTS] if isinstance(item, dict)]


def _conflict_line(item: dict[str, object]) -> str:
    told = [f"{key} {printable(str(item[key]))}" for key in ("expected", "found") if item.get(key) is not None]
    reason = f" ({printable(str(item['reason']))})" if item.get("reason") else ""
    return f"{printable(str(item.get('path', '?')))}: {'; '.join(told)}{reason}"


def _write(line: str) -> None:
    sys.stderr.write(line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    sys.stderr.flush()
