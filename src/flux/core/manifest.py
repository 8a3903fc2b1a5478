"""Manifests: a tree as workspace path → fingerprint.

A manifest of 100 000 entries is read, written and compared on every speculation, so a fingerprint is kept as one
short text token and taken apart only for the few entries that differ. A token has thirteen fields separated by
single spaces, in the order of ``Fingerprint``::

    f 644 0 0 12 <mtime_ns> <ctime_ns> <inode> <links> <rdev> <target> <xattrs> <digest>

``target`` and ``xattrs`` are percent-encoded (``-`` when there is none; xattrs as ``name=value`` joined by commas,
sorted by name). For directories ``size`` and ``links`` are 0: file systems count them differently. The native scanner
writes the same form.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError

Token: TypeAlias = str
Manifest: TypeAlias = dict[str, Token]

_BASE64_KEY = "base64:"
_NONE = "-"


class EntryType(StrEnum):
    """What an entry of a tree is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character_device"
    BLOCK_DEVICE = "block_device"


LETTERS: dict[EntryType, str] = {
    EntryType.FILE: "f",
    EntryType.DIRECTORY: "d",
    EntryType.SYMLINK: "l",
    EntryType.FIFO: "p",
    EntryType.SOCKET: "s",
    EntryType.CHARACTER_DEVICE: "c",
    EntryType.BLOCK_DEVICE: "b",
}
TYPES: dict[str, EntryType] = {letter: kind for kind, letter in LETTERS.items()}


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one entry.

    Units: ``mode`` permission bits (07777), ``size`` bytes, times in nanoseconds since the epoch, ``rdev`` the raw
    device number, ``target`` a symlink's text, ``xattrs`` sorted ``(name, value)`` pairs (ACLs and capabilities are
    among them), ``digest`` ``sha256:…`` of a regular file's content or ``None`` where it was not read.
    """

    type: EntryType
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int
    rdev: int = 0
    target: str | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()
    digest: str | None = None

    def token(self) -> Token:
        """Return the text form."""
        target = _NONE if self.target is None else _quote(paths.to_bytes(self.target))
        pairs = (f"{_quote(paths.to_bytes(key))}={_quote(value)}" for key, value in self.xattrs)
        return (
            f"{LETTERS[self.type]} {self.mode:o} {self.uid} {self.gid} {self.size} {self.mtime_ns} {self.ctime_ns} "
            f"{self.inode} {self.links} {self.rdev} {target} {','.join(pairs) or _NONE} {self.digest or _NONE}"
        )

    def attributes(self) -> tuple[object, ...]:
        """Return what must be equal for two entries to be the same, content of regular files aside."""
        size = self.size if self.type is EntryType.FILE else 0
        return (self.type, self.mode, self.uid, self.gid, size, self.rdev, self.target, self.xattrs)


def _quote(raw: bytes) -> str:
    text = quote_from_bytes(raw, safe="/")
    return "%2D" if text == _NONE else text


def parse(token: Token) -> Fingerprint:
    """Return the fingerprint that ``token`` writes.

    Raises:
        FluxError: ``internal`` if it is malformed (a damaged ``base.json``).
    """
    try:
        (letter, mode, uid, gid, size, mtime, ctime, inode, links, rdev, target, xattrs, digest) = token.split(" ")
        return Fingerprint(
            type=TYPES[letter],
            mode=int(mode, 8),
            uid=int(uid),
            gid=int(gid),
            size=int(size),
            mtime_ns=int(mtime),
            ctime_ns=int(ctime),
            inode=int(inode),
            links=int(links),
            rdev=int(rdev),
            target=None if target == _NONE else paths.from_bytes(unquote_to_bytes(target)),
            xattrs=() if xattrs == _NONE else _parse_xattrs(xattrs),
            digest=None if digest == _NONE else digest,
        )
    except (ValueError, KeyError) as error:
        raise FluxError(Code.INTERNAL, f"cannot read a manifest: damaged fingerprint {token[:80]!r}") from error


def _parse_xattrs(text: str) -> tuple[tuple[str, bytes], ...]:
    pairs = (pair.split("=", 1) for pair in text.split(","))
    return tuple((paths.from_bytes(unquote_to_bytes(key)), unquote_to_bytes(value)) for key, value in pairs)


def with_digest(token: Token, digest: str) -> Token:
    """Return ``token`` with its digest filled in."""
    return f"{token.rpartition(' ')[0]} {digest}"


def encode(manifest: Manifest) -> bytes:
    """Return ``base.json``: one object, path → token; a path that is not UTF-8 has the key ``base64:…``."""
    try:
        return msgspec.json.encode(manifest)
    except UnicodeEncodeError:
        return msgspec.json.encode({_key(path): token for path, token in manifest.items()})


def _key(path: str) -> str:
    if paths.is_utf8(path):
        return path
    return _BASE64_KEY + base64.b64encode(paths.to_bytes(path)).decode("ascii")


def decode(data: bytes) -> Manifest:
    """Return the manifest that ``encode`` wrote.

    Raises:
        FluxError: ``internal`` if it is malformed.
    """
    try:
        manifest = msgspec.json.decode(data, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise FluxError(Code.INTERNAL, "cannot read a manifest: it is not valid JSON") from error
    if any(not path.startswith("/") for path in manifest):
        return {_path(key): token for key, token in manifest.items()}
    return manifest


def _path(key: str) -> str:
    if key.startswith(_BASE64_KEY):
        return paths.from_bytes(base64.b64decode(key[len(_BASE64_KEY) :]))
    return key
