"""As much of DNS as refusing a query takes (RFC 1035 §4)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from flux.core import paths

_HEADER_BYTES = 12
_IS_ANSWER, _OPERATION, _WANTS_RECURSION, _RECURSES, _NO_SUCH_NAME = 0x8000, 0x7800, 0x0100, 0x0080, 3
_LABEL_MAX, _NAME_MAX = 63, 255


class Question(NamedTuple):
    """A query's first question: its name, safe to show, and the bytes that an answer repeats."""

    name: str
    id: int
    flags: int
    raw: bytes


def question(message: bytes) -> Question | None:
    """Return what ``message`` asks for; ``None`` if it is not a plain query."""
    if len(message) < _HEADER_BYTES:
        return None
    number, flags, questions = struct.unpack_from("!HHH", message)
    if flags & (_IS_ANSWER | _OPERATION) or not questions:
        return None
    labels: list[str] = []
    at = _HEADER_BYTES
    while at < len(message) and at - _HEADER_BYTES < _NAME_MAX:
        length = message[at]
        if length == 0:
            raw = message[_HEADER_BYTES : at + 5]
            name = ".".join(labels) or "."
            return Question(name, number, flags, raw) if len(message) >= at + 5 else None
        label = message[at + 1 : at + 1 + length]
        if length > _LABEL_MAX or len(label) < length:
            return None
        labels.append(paths.printable(label.decode("ascii", "surrogateescape")))
        at += 1 + length
    return None


def no_such_name(asked: Question) -> bytes:
    """Return the answer that every resolver takes as final.

    REFUSED would be the franker word, but some C libraries ignore it and wait for their time-out.
    """
    flags = _IS_ANSWER | (asked.flags & _WANTS_RECURSION) | _RECURSES | _NO_SUCH_NAME
    return struct.pack("!HHHHHH", asked.id, flags, 1, 0, 0, 0) + asked.raw
