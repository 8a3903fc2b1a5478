"""Paths inside a workspace, as text that loses no byte.

A *workspace path* is absolute in the workspace's own terms: ``/`` is the root, ``/src/a.c`` an entry. File names are
bytes; in memory they are ``str`` in Python's own lossless form (UTF-8 with ``surrogateescape``), which the ``os``
functions take as it is. JSON cannot hold lone surrogates, so a name that is not UTF-8 travels as a printable form
beside its base64 (spec: speculation).
"""

from __future__ import annotations

import base64
import unicodedata

from flux.core.errors import Code, FluxError

ROOT = "/"
PATH_BYTES_MAX = 4095
_ENCODED = "base64:"


def to_bytes(path: str) -> bytes:
    """Return the bytes that the file system knows ``path`` by."""
    return path.encode("utf-8", "surrogateescape")


def from_bytes(raw: bytes) -> str:
    """Return the lossless text form of a file name's bytes."""
    return raw.decode("utf-8", "surrogateescape")


def is_utf8(path: str) -> bool:
    """Tell whether ``path`` can stand in JSON as it is."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def to_json(path: str) -> tuple[str, str | None]:
    """Return ``(text, base64)``: the text for JSON, and the exact bytes in base64 if the text is not exact."""
    if is_utf8(path):
        return path, None
    raw = to_bytes(path)
    return raw.decode("utf-8", "backslashreplace"), base64.b64encode(raw).decode("ascii")


def from_json(text: str, encoded: str | None) -> str:
    """Return the path that ``to_json`` was given."""
    return text if encoded is None else from_bytes(base64.b64decode(encoded))


def portable(text: str) -> str:
    """Return ``text`` in one string that JSON can hold: as it is, or its bytes as ``base64:…`` if it is not UTF-8.

    A text that itself begins with ``base64:`` is encoded too, so that ``from_portable`` gives back exactly what it was.
    """
    if is_utf8(text) and not text.startswith(_ENCODED):
        return text
    return _ENCODED + base64.b64encode(to_bytes(text)).decode("ascii")


def from_portable(text: str) -> str:
    """Return the text that ``portable`` was given."""
    return from_bytes(base64.b64decode(text[len(_ENCODED) :])) if text.startswith(_ENCODED) else text


def printable(text: str) -> str:
    """Return ``text`` safe to show: control, bidirectional, separator and invalid characters become escapes."""
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        point = ord(char)
        if 0xDC80 <= point <= 0xDCFF:
            return f"\\x{point - 0xDC00:02x}"
        if point <= 0xFF:
            return f"\\x{point:02x}"
        return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
    return char


def normalise(path: str) -> str:
    """Return ``path`` without empty or trailing components.

    Raises:
        FluxError: ``invalid`` if it is relative, holds ``..`` or ``.``, a NUL byte, or is too long.
    """
    if not path.startswith("/"):
        raise FluxError(
            Code.INVALID,
            f"cannot use the path {printable(path)[:80]!r}: it is not absolute; start it with /, the workspace's root",
        )
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise FluxError(
            Code.INVALID, f"cannot use the path {printable(path)[:80]!r}: it holds . or ..; name the entry directly"
        )
    if "\0" in path or len(to_bytes(path)) > PATH_BYTES_MAX:
        raise FluxError(
            Code.INVALID,
            f"cannot use the path {printable(path)[:80]!r}: it has a NUL byte or more than {PATH_BYTES_MAX} bytes",
        )
    return "/" + "/".join(parts)


def parent(path: str) -> str:
    """Return the directory that holds ``path``; the root is its own parent."""
    head = path.rpartition("/")[0]
    return head or ROOT


def name(path: str) -> str:
    """Return the last component of ``path``; empty for the root."""
    return path.rpartition("/")[2]


def join(directory: str, entry: str) -> str:
    """Return the path of ``entry`` in ``directory``."""
    return f"/{entry}" if directory == ROOT else f"{directory}/{entry}"


def is_within(path: str, directory: str) -> bool:
    """Tell whether ``path`` is ``directory`` or lies below it."""
    return directory == ROOT or path == directory or path.startswith(directory + "/")


def ancestors(path: str) -> list[str]:
    """Return the directories above ``path``, nearest first, the root last."""
    result = []
    while path != ROOT:
        path = parent(path)
        result.append(path)
    return result


def relative(path: str) -> str:
    """Return ``path`` as a name below the workspace's root directory: ``.`` for the root."""
    return path[1:] or "."
