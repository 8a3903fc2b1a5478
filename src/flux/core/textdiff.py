"""Unified diffs for people, made without running any program on the content (spec: speculation)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from flux.core import linediff, paths
from flux.core.changeset import Entry

DIFF_BYTES_MAX = 1024 * 1024
CONTEXT_LINES = 3
NO_NEWLINE = b"\\ No newline at end of file\n"

Kind = Literal["text", "binary", "too_large", "unavailable"]


class Diff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one file's content changed.

    ``hunks`` is set for ``text`` only: unified hunks without a header, bytes that are not UTF-8 as backslash escapes.
    ``reason`` says why there are none. A side that is absent has neither size (bytes) nor digest.
    """

    path: str
    kind: Kind
    path_base64: str | None = None
    hunks: str = ""
    added_lines: int = 0
    deleted_lines: int = 0
    before_size: int | None = None
    after_size: int | None = None
    before_digest: str | None = None
    after_digest: str | None = None
    reason: str | None = None


def unified(before: bytes | None, after: bytes | None, path: str) -> Diff:
    """Return the diff of two contents, ``None`` where there is no file; time and size of the result are bounded.

    More than ``DIFF_BYTES_MAX`` on a side is ``too_large``; a NUL byte makes it ``binary``.
    """
    old, new = before or b"", after or b""
    if max(len(old), len(new)) > DIFF_BYTES_MAX:
        reason = f"a side is larger than {DIFF_BYTES_MAX} bytes"
        return _diff(path, "too_large", before, after, reason=reason)
    if b"\0" in old or b"\0" in new:
        return _diff(path, "binary", before, after)
    old_lines, new_lines = lines(old), lines(new)
    blocks = linediff.blocks(old_lines, new_lines)
    text = b"".join(hunks(old_lines, new_lines, blocks)).decode("utf-8", "backslashreplace")
    return msgspec.structs.replace(
        _diff(path, "text", before, after),
        hunks=text,
        added_lines=sum(block[3] - block[2] for block in blocks),
        deleted_lines=sum(block[1] - block[0] for block in blocks),
    )


def undiffed(
    path: str, kind: Literal["too_large", "unavailable"], reason: str, before: Entry | None, after: Entry | None
) -> Diff:
    """Return the diff of contents that were not read, with what the changeset knows of them."""
    text, encoded = paths.to_json(path)
    return Diff(
        path=text,
        path_base64=encoded,
        kind=kind,
        reason=reason,
        before_size=None if before is None else before.size,
        after_size=None if after is None else after.size,
        before_digest=None if before is None else before.digest,
        after_digest=None if after is None else after.digest,
    )


def _diff(path: str, kind: Kind, before: bytes | None, after: bytes | None, reason: str | None = None) -> Diff:
    text, encoded = paths.to_json(path)
    return Diff(
        path=text,
        path_base64=encoded,
        kind=kind,
        reason=reason,
        before_size=None if before is None else len(before),
        after_size=None if after is None else len(after),
        before_digest=None if before is None else _digest(before),
        after_digest=None if after is None else _digest(after),
    )


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def lines(content: bytes) -> list[bytes]:
    """Split at newlines only, keeping them; carriage returns stay part of their line."""
    parts = content.split(b"\n")
    rest = parts.pop()
    result = [part + b"\n" for part in parts]
    return [*result, rest] if rest else result


def hunks(old: Sequence[bytes], new: Sequence[bytes], blocks: Sequence[linediff.Block]) -> Iterator[bytes]:
    """Yield the hunks of a unified diff, each with its ``@@`` line."""
    for group in _grouped(blocks):
        start = max(group[0][0] - CONTEXT_LINES, 0)
        new_start = group[0][2] - (group[0][0] - start)
        end = min(group[-1][1] + CONTEXT_LINES, len(old))
        new_end = group[-1][3] + end - group[-1][1]
        body = [f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n".encode()]
        at = start
        for first, last, new_first, new_last in group:
            body += (_line(b" ", line) for line in old[at:first])
            body += (_line(b"-", line) for line in old[first:last])
            body += (_line(b"+", line) for line in new[new_first:new_last])
            at = last
        body += (_line(b" ", line) for line in old[at:end])
        yield b"".join(body)


def _grouped(blocks: Sequence[linediff.Block]) -> Iterator[list[linediff.Block]]:
    """Yield runs of blocks whose context touches."""
    group: list[linediff.Block] = []
    for block in blocks:
        if group and block[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, end: int) -> str:
    """Write a stretch of lines as hunk headers do: counted from 1, an empty one by the line before it."""
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + NO_NEWLINE
