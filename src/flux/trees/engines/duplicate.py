"""Copying a whole tree from its manifest, with everything that a manifest knows, and holes (spec: speculation)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from flux.core import manifest, paths
from flux.core.diff import Links, attributes
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType, Fingerprint, Manifest, Token
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import metadata
from flux.trees.area import Spot, in_area
from flux.trees.beneath import open_regular
from flux.trees.engines.tree import PassedOver
from flux.trees.journal import Attributes

_STEP = Point.SCRATCH
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAKE = {
    EntryType.FIFO: stat.S_IFIFO,
    EntryType.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryType.BLOCK_DEVICE: stat.S_IFBLK,
    EntryType.SOCKET: stat.S_IFSOCK,
}


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise PassedOver(f"{paths.printable(path)} cannot be copied as it is: {error.strerror}") from error
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise FluxError(
            Code.EXHAUSTED, "cannot copy the workspace: there is no space for a copy: free some and try again"
        ) from error


class Duplication:
    """The copying of one tree into an empty directory."""

    def __init__(self, root: int, base: Manifest, target: int, files: Files) -> None:
        self._root = root
        self._base = base
        self._target = target
        self._files = files
        self._directories = in_area(target)
        self._first: dict[str, str] = {}  # inode → the path that was copied
        status = os.fstat(target)
        self._fresh = Attributes(0o600, status.st_uid, status.st_gid, -1, {})

    def run(self, nested: list[str]) -> None:
        """Copy everything. Mounts inside the tree become empty directories.

        Raises:
            PassedOver: if an entry cannot be copied as it is.
            FluxError: ``exhausted`` if there is no space.
            OSError: anything else.
        """
        ordered = sorted(self._base)
        try:
            for path in ordered:
                if path != paths.ROOT:
                    with _explained(path):
                        self._copy_entry(path, manifest.parse(self._base[path]))
            for path in nested:
                self._make_mount_point(path)
            for path in reversed(ordered):
                if self._base[path].startswith("d "):
                    with _explained(path):
                        self._finish_directory(path, manifest.parse(self._base[path]))
        finally:
            self._directories.close()

    def _copy_entry(self, path: str, entry: Fingerprint) -> None:
        spot = self._directories.parent(path)
        if entry.type is EntryType.DIRECTORY:
            self._files.make_directory(_STEP, *spot)
            return
        first = self._first.setdefault(str(entry.inode), path) if entry.links > 1 else path
        if first != path:
            self._files.link(_STEP, *self._directories.parent(first), *spot)
            return
        if entry.type is EntryType.FILE:
            if not self._copy_file(path, spot):
                return
        elif entry.type is EntryType.SYMLINK:
            self._files.symlink(_STEP, entry.target or "", *spot)
        else:
            self._files.make_node(_STEP, *spot, _MAKE[entry.type] | 0o600, entry.rdev)
        self._settle(spot, entry)

    def _copy_file(self, path: str, spot: Spot) -> bool:
        """Copy the content; tell whether it was still there."""
        try:
            source = open_regular(self._root, path)
        except FileNotFoundError:
            return False  # gone since the scan; the check afterwards finds it missing
        try:
            target = self._files.create(_STEP, *spot)
            try:
                self._files.copy(_STEP, source, target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        return True

    def _settle(self, spot: Spot, entry: Fingerprint) -> None:
        wanted = Attributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns, dict(entry.xattrs))
        metadata.settle(self._files, _STEP, spot, self._fresh, wanted, symlink=entry.type is EntryType.SYMLINK)

    def _make_mount_point(self, path: str) -> None:
        if paths.parent(path) in self._base:
            self._files.make_directory(_STEP, *self._directories.parent(path))

    def _finish_directory(self, path: str, entry: Fingerprint) -> None:
        spot: Spot = (self._target, ".") if path == paths.ROOT else self._directories.parent(path)
        wanted = Attributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns, dict(entry.xattrs))
        metadata.settle(self._files, _STEP, spot, metadata.read(spot)[1], wanted)


def unfaithful(base: Manifest, base_links: Links, copy: Manifest, copy_links: Links) -> dict[str, str]:
    """Return where a copy differs from its original: path → what differs."""
    found: dict[str, str] = {}
    for path, token in base.items():
        other = copy.get(path)
        if other is None:
            found[path] = "missing"
        elif _identity(token) != _identity(other):
            names = _different(manifest.parse(token), manifest.parse(other))
            if names:
                found[path] = ", ".join(names)
        if base_links.get(path) != copy_links.get(path):
            found.setdefault(path, "links")
    found.update((path, "not in the original") for path in copy.keys() - base.keys())
    return found


def _identity(token: Token) -> tuple[list[str], list[str]]:
    fields = token.split(" ")
    return fields[:6], fields[9:12]


def _different(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    names = tuple(name for name in attributes(one, other) if name != "content")
    if one.type is EntryType.FILE and one.size != other.size:
        names += ("size",)
    return names if names or one.mtime_ns == other.mtime_ns else ("mtime",)
