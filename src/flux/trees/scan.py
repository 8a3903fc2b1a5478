"""Scans: what a workspace is right now, as a manifest, and what of it has changed since (spec: speculation).

The native scanner walks by descriptors, follows no link and crosses no mount. Here its findings become trustworthy:
where times cannot tell two contents apart, contents are hashed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from flux.core import conflict, manifest, paths
from flux.core.conflict import Difference
from flux.core.manifest import Manifest, Token
from flux.trees import _native
from flux.trees.beneath import DIRECTORY, open_beneath, open_regular

_CHUNK = 1 << 20
# Writes through a mapping leave no trace in the times of these file systems' files: tmpfs and ramfs.
_TIMELESS = frozenset({0x01021994, 0x858458F6})
_UNKNOWN = " -"


class Scan(msgspec.Struct, kw_only=True):
    """A tree at one moment.

    ``nested``: mounts inside it, which are not part of it. ``unreadable``: ``(path, reason)`` of directories that could
    not be listed and of entries whose attributes could not be read. ``total_bytes``: regular files, each inode once.
    ``linked``: entries that have more names than one, whether or not the others lie in the tree.
    """

    manifest: Manifest
    nested: list[str]
    unreadable: list[tuple[str, str]]
    total_bytes: int
    linked: list[str] = []


def scan(root: int, paths: Sequence[str] = ("/",), *, skip: Collection[str] = ()) -> Scan:
    """Scan a workspace.

    Args:
        root: the workspace's root, open.
        paths: what of it, as workspace paths; all that lies below them is included.
        skip: workspace paths to leave out with all below them.

    Raises:
        OSError: if the root itself cannot be read. Anything else that cannot be is listed in ``unreadable``.
    """
    result = Scan(manifest={}, nested=[], unreadable=[], total_bytes=0)
    racy: list[str] = []
    for top in tops(paths):
        racy += _scan_top(root, top, skip, None, result)
    fill = [path for path, token in result.manifest.items() if token.startswith("f ")] if timeless(root) else racy
    fill_digests(root, result.manifest, fill)
    return result


def rescan(root: int, paths: Sequence[str], base: Manifest, *, skip: Collection[str] = ()) -> list[str]:
    """Return the paths below ``paths`` that differ from the base, sorted.

    Times of directories do not count. A file whose content the base knows is compared by it, any other by inode, size
    and times; where those differ the path is returned, as its content may have changed.
    """
    fresh = Scan(manifest={}, nested=[], unreadable=[], total_bytes=0)
    wanted = tops(paths)
    for top in wanted:
        _scan_top(root, top, skip, base, fresh)
    changed = {path for path, token in fresh.manifest.items() if not _is_equal(root, path, base.get(path), token)}
    known = (path for path, token in base.items() if not token.endswith(_UNKNOWN) and path not in fresh.manifest)
    for path in known:
        if any(covers(top, path) for top in wanted) and not any(covers(top, path) for top in skip):
            token = entry(root, path)
            if not _is_equal(root, path, base[path], token or ""):
                changed.add(path)
    return sorted(changed)


def _scan_top(root: int, top: str, skip: Collection[str], base: Manifest | None, into: Scan) -> list[str]:
    """Scan one of the wanted trees into a scan; return the racy files."""
    descriptor = os.dup(root) if top == paths.ROOT else _open_top(root, top, into)
    if descriptor is None:
        if not any(covers(path, top) for path in skip):
            _scan_single(root, top, base, into)
        return []
    try:
        found = _native.scan(descriptor, top, list(skip), base)
    finally:
        os.close(descriptor)
    into.manifest.update(found[0])
    into.nested += found[1]
    into.unreadable += found[2]
    into.total_bytes += found[3]
    into.linked += found[5]
    return found[4]


def _open_top(root: int, top: str, into: Scan) -> int | None:
    try:
        return open_beneath(root, top, DIRECTORY)
    except PermissionError as error:
        into.unreadable.append((top, error.strerror or "not readable"))
    except OSError:  # not a directory, a link or a mount in the way, or nothing at all
        pass
    return None


def _scan_single(root: int, path: str, base: Manifest | None, into: Scan) -> None:
    token = entry(root, path)
    if token is not None and (base is None or base.get(path) != token):
        into.manifest[path] = token
    if base is not None:
        gone = (other for other in base if covers(path, other) and (other != path or token is None))
        into.manifest.update((other, "") for other in gone)
    elif token is not None and token.startswith("f "):
        into.total_bytes += manifest.parse(token).size
        fill_digests(root, into.manifest, [path])


def _is_equal(root: int, path: str, before: Token | None, now: Token) -> bool:
    if not now or before is None:
        return False
    difference = conflict.differs(before, now, by_content=not before.endswith(_UNKNOWN))
    if difference is Difference.NEEDS_CONTENT and not before.endswith(_UNKNOWN):
        difference = conflict.differs(before, with_content(root, path, now), by_content=True)
    return difference is Difference.EQUAL


def entry(root: int, path: str) -> Token | None:
    """Return one entry's token, ``None`` if nothing is there or it lies on another mount; no link is followed."""
    token = _native.lookup(root, [path])[0]
    if not token:
        return None
    return with_content(root, path, token) if token.startswith("f ") and timeless(root) else token


def with_content(root: int, path: str, token: Token) -> Token:
    """Return ``token`` with the digest of the file that is there now, unchanged if it is none or cannot be read."""
    if not token.startswith("f "):
        return token
    try:
        descriptor = open_regular(root, path)
    except OSError:
        return token
    try:
        return manifest.with_digest(token, hash_file(descriptor))
    finally:
        os.close(descriptor)


def fill_digests(root: int, tokens: Manifest, wanted: Iterable[str]) -> None:
    """Put the digests of the regular files at ``wanted`` into their tokens."""
    for path in wanted:
        tokens[path] = with_content(root, path, tokens[path])


def hash_file(descriptor: int) -> str:
    """Return ``sha256:…`` of a regular file's whole content, wherever its position stands."""
    digest = hashlib.sha256()
    for chunk in chunks(descriptor):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def chunks(descriptor: int) -> Iterator[bytes]:
    """Yield a regular file's content in pieces of at most 1 MiB."""
    offset = 0
    while chunk := os.pread(descriptor, _CHUNK, offset):
        yield chunk
        offset += len(chunk)


def timeless(descriptor: int) -> bool:
    """Tell whether files of this file system can change without a trace in their times."""
    return _native.filesystem(descriptor) in _TIMELESS


def tops(wanted: Iterable[str]) -> list[str]:
    """Return ``wanted`` without those that lie below others, sorted."""
    result: list[str] = []
    for path in sorted(set(wanted), key=lambda path: path.split("/")):
        if not result or not covers(result[-1], path):
            result.append(path)
    return result


def covers(top: str, path: str) -> bool:
    """Tell whether ``path`` is ``top`` or lies below it."""
    return paths.is_within(path, top)
