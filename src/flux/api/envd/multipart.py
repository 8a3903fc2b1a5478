"""Forms with files, taken apart as they come (RFC 7578), as E2B's clients write them.

Their file names are whole paths in plain UTF-8. What would end the quoted name early is escaped with a backslash by
one of them and as ``%22`` by the other; both write line ends as ``%0D`` and ``%0A``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from urllib.parse import unquote

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError

HEADERS_BYTES_MAX = 32 * 1024
PARTS_MAX = 10_000
_BOUNDARY_MAX = 200
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)
_NAME = re.compile(r';\s*name="([^"]*)"', re.IGNORECASE)
_FILE_NAME = re.compile(r';\s*filename="(.*)"\s*$', re.IGNORECASE | re.DOTALL)
_CODED_NAME = re.compile(r";\s*filename\*=utf-8''([^\s;]*)", re.IGNORECASE)
_ESCAPED = re.compile(r'\\([\\"])')
_CODED = re.compile(r"%(22|7F|[01][0-9A-F])")


class Part(msgspec.Struct, frozen=True):
    """The beginning of a part: its field's name, and the file's if it has one."""

    name: str
    filename: str | None


class _At(Enum):
    PREAMBLE = auto()
    BOUNDARY = auto()
    HEADERS = auto()
    CONTENT = auto()
    END = auto()


class Form:
    """Takes a form apart.

    Args:
        content_type: the request's, with the boundary.

    Raises:
        FluxError: ``invalid`` without a boundary.
    """

    def __init__(self, content_type: str) -> None:
        found = _BOUNDARY.search(content_type)
        boundary = (found.group(1) or found.group(2) or "") if found else ""
        if not 0 < len(boundary) <= _BOUNDARY_MAX:
            raise _broken("it has no boundary")
        self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        # The first delimiter may be the very first line.
        self._held = bytearray(b"\r\n")
        self._at = _At.PREAMBLE
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """Yield what has come: a part's beginning, then its content in pieces.

        Raises:
            FluxError: ``invalid`` for what is no form, ``too_large`` for too many parts.
        """
        self._held += data
        while True:
            before = self._at
            if before in (_At.PREAMBLE, _At.CONTENT):
                yield from self._content()
            elif before is _At.BOUNDARY:
                self._boundary()
            elif before is _At.HEADERS:
                yield from self._headers()
            else:
                self._held.clear()
            if self._at is before:
                return

    def _content(self) -> Iterator[bytes]:
        end = self._held.find(self._delimiter)
        kept = len(self._delimiter) - 1
        told = end if end >= 0 else max(len(self._held) - kept, 0)
        if told and self._at is _At.CONTENT:
            yield bytes(memoryview(self._held)[:told])
        del self._held[: told if end < 0 else end + len(self._delimiter)]
        if end >= 0:
            self._at = _At.BOUNDARY

    def _boundary(self) -> None:
        if self._held.startswith(b"--"):
            self._at = _At.END
            return
        end = self._held.find(b"\r\n")
        if end >= 0:
            if bytes(self._held[:end]).strip(b" \t"):
                raise _broken("something follows a boundary")
            del self._held[: end + 2]
            self._at = _At.HEADERS
        elif len(self._held) > HEADERS_BYTES_MAX:
            raise _broken("something follows a boundary")

    def _headers(self) -> Iterator[Part]:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            if len(self._held) > HEADERS_BYTES_MAX:
                raise _broken("the headers of a part are too long")
            return
        text = paths.from_bytes(bytes(self._held[:end]))
        # The line end before a delimiter that follows at once stays.
        del self._held[: end + 2]
        self._at = _At.CONTENT
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise FluxError(Code.TOO_LARGE, f"cannot take the form: it has more than {PARTS_MAX} parts; send several")
        yield _part(text)
        if not self._held.startswith(self._delimiter):
            del self._held[:2]

    def finish(self) -> None:
        """Tell that nothing more comes. Raises ``invalid`` if the form is not at its end."""
        if self._at is not _At.END:
            raise _broken("it ends before its last boundary")


def _part(text: str) -> Part:
    for line in text.split("\r\n"):
        header, _, value = line.partition(":")
        if header.strip().lower() == "content-disposition":
            name = _NAME.search(value)
            return Part(name.group(1) if name else "", _filename(value))
    raise _broken("a part has no content-disposition")


def _filename(value: str) -> str | None:
    coded = _CODED_NAME.search(value)
    if coded:
        return unquote(coded.group(1), errors="surrogateescape")
    found = _FILE_NAME.search(value)
    if found is None:
        return None
    plain = _ESCAPED.sub(r"\1", found.group(1))
    return _CODED.sub(lambda match: chr(int(match.group(1), 16)), plain)


def _broken(why: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot read the form: {why}")
