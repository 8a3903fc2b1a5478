"""The audit log: JSON lines, only ever appended, durable before the reply they belong to (spec: access)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from flux.core.audit import AuditEvent, AuditFilter
from flux.core.errors import Code, FluxError
from flux.failpoints import Point
from flux.ports.files import Files
from flux.store.errors import from_os
from flux.store.state import StateDirectory

NAME = "audit.log"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18
_decoder = msgspec.json.Decoder(dict[str, Any])
_FIELDS = frozenset(AuditEvent.__struct_fields__) - {"details"}


class Audit:
    """The log of one state directory. A cursor is a byte position between two lines."""

    def __init__(self, state: StateDirectory, files: Files) -> None:
        self._files = files
        self._grown = threading.Condition()
        try:
            try:
                self._descriptor = os.open(NAME, _OPEN, dir_fd=state.root)
            except FileNotFoundError:
                os.close(files.create(Point.STATE_OPEN, state.root, NAME))
                self._descriptor = os.open(NAME, _OPEN, dir_fd=state.root)
            self._size = os.fstat(self._descriptor).st_size
            if self._size == 0:  # its name may not be durable yet
                files.sync_file(Point.STATE_OPEN, state.root)
            self._torn = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"
        except OSError as error:
            raise from_os(error, "open the audit log") from error

    def append(self, *lines: AuditEvent) -> None:
        """Append lines and return when they are durable.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; none of the lines counts then, and a repetition is harmless.
        """
        data = b"".join(_encoded(line) + b"\n" for line in lines)
        with self._grown:
            # What a crash or a full disk cut off was never acknowledged: it is ended as a line that no reader takes.
            data = b"\n" + data if self._torn else data
            self._torn = True
            try:
                self._files.write(Point.AUDIT_APPEND, self._descriptor, data)
                self._files.sync_file(Point.AUDIT_APPEND, self._descriptor)
            except OSError as error:
                raise from_os(error, "write the audit log") from error
            self._torn = False
            self._size = os.fstat(self._descriptor).st_size
            self._grown.notify_all()

    def read(self, filters: AuditFilter, limit: int, cursor: int) -> tuple[list[AuditEvent], int]:
        """Return at most ``limit`` matching lines from ``cursor`` on, oldest first, and where to read on."""
        found: list[AuditEvent] = []
        position = cursor
        for after, line in self._lines(cursor):
            position = after
            if line is not None and filters.matches(line):
                found.append(line)
            if len(found) == limit:
                break
        return found, position

    def wait(self, position: int, timeout_seconds: float) -> bool:
        """Wait until there are lines after ``position``; return whether there are."""
        with self._grown:
            return self._grown.wait_for(lambda: self._size > position, timeout_seconds)

    def end(self) -> int:
        """Return the cursor after the last line."""
        with self._grown:
            return self._size

    def holds(self, wanted: Sequence[str]) -> set[str]:
        """Return which of the line ids ``wanted`` are in the log."""
        return {line.id for _, line in self._lines(0) if line is not None and line.id in wanted}

    def check(self, cursor: int) -> int:
        """Return ``cursor`` if it stands between two lines.

        Raises:
            FluxError: ``invalid``.
        """
        between = cursor == 0 or (0 < cursor <= self.end() and os.pread(self._descriptor, 1, cursor - 1) == b"\n")
        if not between:
            raise FluxError(Code.INVALID, "cannot read the audit log: the cursor is not one of its own; leave it out")
        return cursor

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def _lines(self, position: int) -> Iterator[tuple[int, AuditEvent | None]]:
        """Yield each whole line with the position after it; ``None`` for one that a crash cut off."""
        end = self.end()
        rest = b""
        while position < end:
            data = os.pread(self._descriptor, min(_CHUNK, end - position), position)
            if not data:
                return
            position += len(data)
            *lines, rest = (rest + data).split(b"\n")
            after = position - len(rest) - sum(len(line) + 1 for line in lines)
            for line in lines:
                after += len(line) + 1
                yield after, _decoded(line)


def _encoded(line: AuditEvent) -> bytes:
    """Write a line as one flat object: what an event tells beyond the fields of every line stands beside them."""
    fields = msgspec.to_builtins(line)
    return msgspec.json.encode({**fields.pop("details", {}), **fields})


def _decoded(line: bytes) -> AuditEvent | None:
    try:
        fields = _decoder.decode(line)
        own = {name: fields.pop(name) for name in _FIELDS if name in fields}
        return msgspec.convert({**own, "details": fields}, AuditEvent)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
