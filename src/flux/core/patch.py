"""Patches that ``git apply`` takes: text hunks, and literal binary content where text cannot say it.

A patch carries regular files (with their execute bit) and links. Directories, owners, other mode bits, extended
attributes, FIFOs and devices have no form in it; a tar has.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from typing import Literal

import msgspec

from flux.core import linediff, paths
from flux.core.textdiff import DIFF_BYTES_MAX, hunks, lines

GitMode = Literal["100644", "100755", "120000"]

_ABSENT = "0" * 40
_BINARY_LINE_BYTES = 52
_LETTERS = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_DEL = 0x7F


class Side(msgspec.Struct, frozen=True):
    """One side of a change as git sees it; a link's content is its target."""

    mode: GitMode
    content: bytes


def patch(path: str, before: Side | None, after: Side | None) -> bytes:
    """Return the patch of one entry, empty if git sees no difference.

    Args:
        path: the workspace path.
        before: the entry before; ``None`` if it was absent or has no form in a patch.
        after: the entry after, likewise.
    """
    if before is not None and after is not None and before.mode != after.mode and "120000" in (before.mode, after.mode):
        return patch(path, before, None) + patch(path, None, after)
    if before == after:
        return b""
    old, new = quoted("a" + path), quoted("b" + path)
    return f"diff --git {old} {new}\n".encode("ascii") + b"".join(_modes(before, after)) + _content(path, before, after)


def quoted(name: str) -> str:
    """Write a name as git does: in double quotes with C escapes if a byte of it needs them."""
    raw = paths.to_bytes(name)
    if all(0x20 <= byte < _DEL and byte not in _LETTERS for byte in raw):
        return raw.decode("ascii")
    return '"' + "".join(_escaped(byte) for byte in raw) + '"'


def _escaped(byte: int) -> str:
    if byte in _LETTERS:
        return "\\" + _LETTERS[byte]
    return chr(byte) if 0x20 <= byte < _DEL else f"\\{byte:03o}"


def _modes(before: Side | None, after: Side | None) -> Iterator[bytes]:
    if before is None and after is not None:
        yield f"new file mode {after.mode}\n".encode()
    elif after is None and before is not None:
        yield f"deleted file mode {before.mode}\n".encode()
    elif before is not None and after is not None and before.mode != after.mode:
        yield f"old mode {before.mode}\nnew mode {after.mode}\n".encode()


def _content(path: str, before: Side | None, after: Side | None) -> bytes:
    old, new = before.content if before else b"", after.content if after else b""
    if before is not None and after is not None and old == new:
        return b""
    index = f"index {_object_id(before)}..{_object_id(after)}\n".encode()
    if b"\0" in old or b"\0" in new or max(len(old), len(new)) > DIFF_BYTES_MAX:
        return index + b"GIT binary patch\n" + _literal(new) + _literal(old)
    if old == new:
        return index
    old_lines, new_lines = lines(old), lines(new)
    body = b"".join(hunks(old_lines, new_lines, linediff.blocks(old_lines, new_lines)))
    return index + _label("---", "a" + path, before) + _label("+++", "b" + path, after) + body


def _label(sign: str, name: str, side: Side | None) -> bytes:
    shown = "/dev/null" if side is None else quoted(name)
    # A name with blanks is told from a time stamp by the tab behind it.
    end = "\t" if side is not None and " " in name else ""
    return f"{sign} {shown}{end}\n".encode("ascii")


def _object_id(side: Side | None) -> str:
    if side is None:
        return _ABSENT
    return hashlib.sha1(b"blob %d\0" % len(side.content) + side.content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> bytes:
    packed = zlib.compress(content)
    result = [b"literal %d\n" % len(content)]
    for start in range(0, len(packed), _BINARY_LINE_BYTES):
        chunk = packed[start : start + _BINARY_LINE_BYTES]
        length = len(chunk) + (64 if len(chunk) <= 26 else 70)
        result += (bytes([length]), base64.b85encode(chunk, pad=True), b"\n")
    return b"".join([*result, b"\n"])
