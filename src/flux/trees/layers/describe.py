"""What an overlay's writable layer holds, as a ``Layer``: found by looking at the layer alone, O(changes) (§6)."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import defaultdict

import msgspec

from flux.core import paths
from flux.core.artifact import BLOCK, Layer, digest_of, encode
from flux.core.blocks import zeros
from flux.core.errors import Code, FluxError
from flux.core.manifest import Manifest, Token
from flux.trees import _native
from flux.trees.beneath import open_regular
from flux.trees.upper import TRUSTED, USER, is_whiteout

_MODE, _UID, _GID, _MTIME, _CTIME, _INODE, _LINKS, _XATTRS = 1, 2, 3, 5, 6, 7, 8, 11
#: What binds an overlay's layer to inodes of one machine. Everything else that an overlay wrote says what it shows.
_BOOKKEEPING = ("origin", "impure", "nlink", "uuid", "upper")
#: Blocks of one file; a larger one, holes included, cannot be described.
_BLOCKS_MAX = 1 << 20
_READ_BLOCKS = 16


class Described(msgspec.Struct, frozen=True):
    """A layer, its id, and its seal: portable path → the real token of its entry."""

    layer: Layer
    layer_id: str
    seal: dict[str, str]


def describe(tree: int, prefix: str) -> Described:
    """Describe the layer in an open directory, whose files nobody changes meanwhile. Sockets are left out.

    Args:
        tree: the layer's root, open.
        prefix: of what the overlay wrote: ``TRUSTED`` or ``USER``.

    Raises:
        FluxError: ``denied`` if something in it cannot be read, ``too_large`` for a file of more than 64 GiB,
            ``not_applicable`` if another file system is mounted in it.
        OSError: if it cannot be read otherwise.
    """
    found = look(tree)
    entries = normal(found, prefix)
    contents: dict[str, list[str]] = {}
    seen: set[str] = set()
    size = 0
    for path in sorted(entries):
        token = entries[path]
        if not token.startswith("f "):
            continue
        fields = token.split(" ", 8)
        if fields[_INODE] != "0":
            if fields[_INODE] in seen:
                continue
            seen.add(fields[_INODE])
        contents[paths.portable(path)] = _blocks(tree, path, int(fields[4]))
        size += int(fields[4])
    layer = Layer(entries=seal_of(entries), contents=contents, size=size)
    return Described(layer, digest_of(encode(layer)), seal_of(found))


def look(tree: int) -> Manifest:
    """Return the real entries of a layer.

    Raises:
        FluxError: ``denied`` or ``not_applicable``, as ``describe``.
    """
    found, nested, unreadable, _, _, _ = _native.scan(tree, paths.ROOT, [], None)
    if unreadable or nested:
        path, reason = unreadable[0] if unreadable else (nested[0], "another file system is mounted there")
        raise FluxError(
            Code.DENIED if unreadable else Code.NOT_APPLICABLE,
            f"cannot save the sandbox: {paths.printable(path)[:200]}: {reason.lower()}; it runs on as it was",
            {"path": paths.to_json(path)[0]},
        )
    return found


def seal_of(entries: Manifest) -> dict[str, str]:
    """Return entries by portable path, as a seal and a layer have them."""
    return {paths.portable(path): token for path, token in entries.items()}


def normal(entries: Manifest, prefix: str) -> Manifest:
    """Return real entries as a ``Layer`` names them: the same on every machine."""
    groups = _groups(entries)
    return {path: _normal(token, prefix, groups.get(path, (0, 1))) for path, token in entries.items()}


def _groups(entries: Manifest) -> dict[str, tuple[int, int]]:
    """Return the number of the group of hard links, and how many names it has here, of each entry with several."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(entries):
        fields = entries[path].split(" ", 9)
        if fields[0] != "d" and fields[_LINKS] != "1" and not is_whiteout(entries[path]):
            names[fields[_INODE]].append(path)
    groups = [group for group in names.values() if len(group) > 1]
    return {path: (number, len(group)) for number, group in enumerate(groups, 1) for path in group}


def _normal(token: Token, prefix: str, group: tuple[int, int]) -> Token:
    fields = token.split(" ")
    fields[_CTIME] = "0"
    if is_whiteout(token):  # one inode stands for many of them, and only that it is there means something
        fields[_MODE] = fields[_UID] = fields[_GID] = fields[_MTIME] = "0"
    if fields[0] == "d":
        fields[_INODE] = "0"
    else:
        fields[_INODE], fields[_LINKS] = str(group[0]), str(group[1])
    if prefix in fields[_XATTRS]:
        fields[_XATTRS] = without_bookkeeping(fields[_XATTRS], prefix)
    return " ".join(fields)


def without_bookkeeping(xattrs: str, prefix: str) -> str:
    """Return a token's extended attributes without what binds them to inodes of one machine."""
    dropped = tuple(f"{prefix}{name}=" for name in _BOOKKEEPING)
    return ",".join(pair for pair in xattrs.split(",") if not pair.startswith(dropped)) or "-"


def prefix_of(*, privileged: bool) -> str:
    """Return how the names begin of what an overlay writes."""
    return TRUSTED if privileged else USER


def _blocks(tree: int, path: str, size: int) -> list[str]:
    if size > _BLOCKS_MAX * BLOCK:
        raise FluxError(
            Code.TOO_LARGE,
            f"cannot save the sandbox: {paths.printable(path)[:200]} has {size} bytes, holes included, and at most "
            f"{_BLOCKS_MAX * BLOCK} can be kept; it runs on as it was",
            {"path": paths.to_json(path)[0], "size": size},
        )
    if not size:
        return []
    descriptor = open_regular(tree, path)
    try:
        return hash_blocks(descriptor, size)
    finally:
        os.close(descriptor)


def hash_blocks(descriptor: int, size: int) -> list[str]:
    """Return the digests of a file's blocks. Holes are not read."""
    digests: list[str] = []
    offset = 0
    while offset < size:
        offset = _skip_hole(descriptor, offset, size, digests)
        data = memoryview(os.pread(descriptor, min(BLOCK * _READ_BLOCKS, size - offset), offset))
        if not data and offset < size:
            raise FluxError(Code.UNAVAILABLE, "cannot save the sandbox: a file became shorter meanwhile; try again")
        digests += [hashlib.sha256(data[at : at + BLOCK]).hexdigest() for at in range(0, len(data), BLOCK)]
        offset += len(data)
    return digests


def _skip_hole(descriptor: int, offset: int, size: int, digests: list[str]) -> int:
    """Add the whole blocks of a hole at ``offset``, and return where it ends."""
    if size - offset <= BLOCK:
        return offset
    try:
        data = os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a file system that does not tell
            return offset
        data = size
    whole = (min(data, size) - offset) // BLOCK
    digests += [zeros(BLOCK)] * whole
    return offset + whole * BLOCK
