"""The journal of an apply: enough, alone, to take the tree back to what it was (spec: speculation).

One file, ``journal``, in the changeset's directory. Its first record holds every step with its pre-image and is durable
before the workspace is touched; ``prepared`` identifies the new entries and is durable before the first of them is
installed; ``undone`` says that the tree is back and only the area is left to clear. Records are framed by length and
checksum, so a torn one counts as never written. Room for the later records is written with the first, so that rolling
back works on a full disk.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import Literal, TypeAlias

import msgspec

from flux.core.errors import Code, FluxError
from flux.failpoints import Point
from flux.ports.files import Files

NAME = "journal"
_DRAFT = "journal.new"
_MAGIC = b"flux journal 1\n\0"
_HEADER = struct.Struct("<II")
_INTEGER_BYTES_MAX = 9
_ROOM = 512

Place: TypeAlias = Literal["changeset", "workspace"]


class Attributes(msgspec.Struct, frozen=True, array_like=True):
    """What can be amended on an inode. ``mode`` permission bits, ``mtime_ns`` nanoseconds since the epoch."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: dict[str, bytes] = {}


class JournalStep(msgspec.Struct, frozen=True, array_like=True):
    """One rename: its path, and the inode that it displaces (0: nothing may be there)."""

    kind: Literal["create", "replace", "remove"]
    path: bytes
    inode: int


class Fresh(msgspec.Struct, frozen=True, array_like=True):
    """A new entry as it is installed: ``letter`` its type, ``content`` a file's digest or a symlink's target."""

    path: bytes
    letter: str
    size: int
    content: bytes


class Amended(msgspec.Struct, frozen=True, array_like=True):
    """Attributes that are changed in place, and what they were."""

    path: bytes
    inode: int
    old: Attributes
    new: Attributes


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """A directory whose entries change: its mtime and mode come back with a roll back.

    ``widened`` is the mode that it has meanwhile, for an owner who may not write into it otherwise; 0 if none.
    """

    path: bytes
    inode: int
    mode: int
    mtime_ns: int
    widened: int = 0


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The whole apply, before anything is written.

    ``live``: displaced paths whose inode stays in the workspace under another name.
    """

    changeset_id: str
    root_inode: int
    place: Place
    steps: list[JournalStep]
    fresh: list[list[Fresh]]
    amended: list[Amended]
    parents: list[Parent]
    live: list[tuple[bytes, bytes]] = []


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The inode that waits in each slot; 0 for a removal."""

    inodes: list[int]


class Undone(msgspec.Struct, frozen=True, tag="undone"):
    """The tree is as it was, but for ``problems``: paths and reasons.

    ``kept``: slots that hold what is not back. ``cleared``: the rest of the area is gone, nothing is left to do.
    """

    problems: list[tuple[bytes, str]]
    kept: list[str]
    cleared: bool = False


Record: TypeAlias = Begun | Prepared | Undone


class Journal(msgspec.Struct):
    """What a journal says."""

    begun: Begun
    prepared: Prepared | None = None
    undone: Undone | None = None
    end: int = 0


def begin(files: Files, directory: int, begun: Begun) -> Journal:
    """Write the first record and make it durable; on an error no journal is left.

    Raises:
        OSError: if it could not be made durable.
    """
    frame = _MAGIC + _frame(begun)
    room = _INTEGER_BYTES_MAX * len(begun.steps) + _ROOM
    _discard(files, directory, _DRAFT)
    try:
        descriptor = files.create(Point.APPLY_JOURNAL, directory, _DRAFT)
        try:
            files.write(Point.APPLY_JOURNAL, descriptor, frame + bytes(room))
            files.sync_file(Point.APPLY_JOURNAL, descriptor)
        finally:
            os.close(descriptor)
        files.rename(Point.APPLY_JOURNAL, directory, _DRAFT, directory, NAME)
        files.sync_file(Point.APPLY_JOURNAL, directory)
    except OSError:
        for name in (_DRAFT, NAME):
            with contextlib.suppress(OSError):
                _discard(files, directory, name)
        raise
    return Journal(begun=begun, end=len(frame))


def append(files: Files, directory: int, journal: Journal, record: Prepared | Undone) -> None:
    """Add a record and make it durable.

    Raises:
        OSError: if it could not be made durable.
    """
    frame = _frame(record)
    descriptor = os.open(NAME, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.lseek(descriptor, journal.end, os.SEEK_SET)
        files.write(Point.APPLY_JOURNAL, descriptor, frame + bytes(_HEADER.size))
        files.sync_file(Point.APPLY_JOURNAL, descriptor)
    finally:
        os.close(descriptor)
    journal.end += len(frame)
    if isinstance(record, Prepared):
        journal.prepared = record
    else:
        journal.undone = record


def read(directory: int) -> Journal | None:
    """Return what the journal in ``directory`` says, or ``None`` if there is none.

    Raises:
        FluxError: ``internal`` if its first record is damaged, which no crash can do.
    """
    try:
        descriptor = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read()
    if not data.startswith(_MAGIC):
        raise _damaged()
    records, end = _records(data)
    if not records or not isinstance(records[0], Begun):
        raise _damaged()
    journal = Journal(begun=records[0], end=end)
    for record in records[1:]:
        if isinstance(record, Prepared):
            journal.prepared = record
        elif isinstance(record, Undone):
            journal.undone = record
    return journal


def remove(files: Files, directory: int) -> None:
    """Remove the journal of an apply that is over."""
    _discard(files, directory, NAME)


def _discard(files: Files, directory: int, name: str) -> None:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    files.unlink(Point.APPLY_JOURNAL, directory, name)


def _frame(record: Record) -> bytes:
    payload = msgspec.msgpack.encode(record)
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


_decoder = msgspec.msgpack.Decoder(Record)


def _records(data: bytes) -> tuple[list[Record], int]:
    records: list[Record] = []
    offset = len(_MAGIC)
    while offset + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, offset)
        payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
        if not length or len(payload) != length or zlib.crc32(payload) != checksum:
            break
        records.append(_decoder.decode(payload))
        offset += _HEADER.size + length
    return records, offset


def _damaged() -> FluxError:
    return FluxError(Code.INTERNAL, "cannot recover an apply: its journal is damaged; compare the sandbox by hand")
