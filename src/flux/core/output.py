"""Captured output: the first bytes are kept, the rest is counted (spec: speculation)."""

from __future__ import annotations

import base64

from flux.core.changeset import Output

KEPT_BYTES = 64 * 1024
_LONGEST_CHARACTER = 4


class Capture:
    """Collects one stream in bounded memory, whatever its size.

    Args:
        limit: how many bytes are kept.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._size = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream."""
        self._size += len(data)
        room = self._limit - len(self._kept)
        if room > 0:
            self._kept += data[:room]

    def result(self) -> Output:
        """Return what was captured so far, with a marker if bytes are missing."""
        return output(bytes(self._kept), self._size)


def output(kept: bytes, size: int) -> Output:
    """Return the reviewable form of a stream of ``size`` bytes of which the first ones were ``kept``.

    A character that the limit cut in half is left out, so that text stays text. What is not UTF-8 is shown with
    backslash escapes and carried exactly in base64.
    """
    text_bytes = _whole_characters(kept) if size > len(kept) else kept
    try:
        text, exact = text_bytes.decode("utf-8"), None
    except UnicodeDecodeError:
        text_bytes = kept
        text, exact = kept.decode("utf-8", "backslashreplace"), base64.b64encode(kept).decode("ascii")
    missing = size - len(text_bytes)
    return Output(text=f"{text}[truncated {missing} bytes]" if missing else text, base64=exact, size=size)


def _whole_characters(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a UTF-8 character at its end."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            break
    return data
