"""What is told of an entry: kind, size, rights, owner, times, where a link points, what its user noted on it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.engine.filesystem.names import Owners

Kind = Literal["file", "directory", "symlink", "other"]

#: Where notes are kept on a file: extended attributes by this prefix.
PREFIX = "user.e2b."
NOTES_MAX = 64
NOTES_BYTES_MAX = 2048
_KEY_BYTES_MAX = 255 - len(PREFIX)
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")
_LETTERS = MappingProxyType(
    {
        stat.S_IFDIR: "d",
        stat.S_IFLNK: "L",
        stat.S_IFIFO: "p",
        stat.S_IFSOCK: "S",
        stat.S_IFBLK: "D",
        stat.S_IFCHR: "Dc",
    }
)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a sandbox's file system. ``path`` and ``name`` are lossless text; ``mode``: the nine bits of rights.

    ``size`` in bytes, ``modified_ns`` since the epoch. ``target``: what a link says. ``metadata``: what was noted when
    the file was written.
    """

    name: str
    kind: Kind
    path: str
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_ns: int
    target: str | None = None
    metadata: dict[str, str] = {}


def entry_of(handle: int, path: str, owners: Owners, *, told: bool = True) -> FileEntry:
    """Return what is told of an open entry (``O_PATH`` and ``O_NOFOLLOW`` suffice).

    ``told``: its content may be looked at too, which is where a link points and what was noted.
    """
    status = os.fstat(handle)
    kind = kind_of(status.st_mode)
    return FileEntry(
        name=paths.name(path) or paths.ROOT,
        kind=kind,
        path=path,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        permissions=permissions_of(status.st_mode),
        owner=owners.user(status.st_uid),
        group=owners.group(status.st_gid),
        modified_ns=status.st_mtime_ns,
        target=os.readlink("", dir_fd=handle) if told and kind == "symlink" else None,
        metadata=notes_of(handle) if told and kind in ("file", "directory") else {},
    )


def kind_of(mode: int) -> Kind:
    """Return the kind of an entry."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def permissions_of(mode: int) -> str:
    """Return kind and rights in letters, such as ``-rw-r--r--``, ``drwxr-xr-x``, ``Lrwxrwxrwx``, ``dtrwxrwxrwx``."""
    letters = _LETTERS.get(stat.S_IFMT(mode), "")
    special = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t"))
    letters += "".join(letter for bit, letter in special if mode & bit)
    return (letters or "-") + "".join(letter if mode & 1 << 8 - at else "-" for at, letter in enumerate("rwx" * 3))


def notes_of(handle: int) -> dict[str, str]:
    """Return what was noted on an open file or directory; what is no text is left out."""
    place = f"/proc/self/fd/{handle}"
    notes: dict[str, str] = {}
    try:
        for name in sorted(os.listxattr(place)):
            if name.startswith(PREFIX) and len(notes) < NOTES_MAX:
                value = os.getxattr(place, name).decode("utf-8", "surrogateescape")
                if paths.is_utf8(value) and paths.is_utf8(name):
                    notes[name[len(PREFIX) :]] = value
    except OSError:  # a file system without attributes, or one that changes just now
        return notes
    return notes


def checked_notes(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as they are kept, with keys in lower case.

    Raises:
        FluxError: ``invalid`` for a key or value that cannot be kept, or for too much of them.
    """
    kept = {key.lower(): value for key, value in notes.items()}
    for key, value in kept.items():
        if not key or not set(key) <= _KEY_CHARACTERS or len(key) > _KEY_BYTES_MAX:
            raise FluxError(Code.INVALID, f"cannot keep the metadata {printable(key)[:80]!r}: that is no usable key")
        if not value.isascii() or not value.isprintable():
            raise FluxError(Code.INVALID, f"cannot keep the metadata {key!r}: its value is not printable ASCII")
    if len(kept) > NOTES_MAX or sum(len(key) + len(value) for key, value in kept.items()) > NOTES_BYTES_MAX:
        raise FluxError(
            Code.INVALID,
            f"cannot keep the metadata: it is more than {NOTES_MAX} keys or {NOTES_BYTES_MAX} bytes; shorten it",
        )
    return kept
