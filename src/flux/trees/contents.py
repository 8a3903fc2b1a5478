"""Contents of touched files: hashed on both sides, each inode once, and only where it is still what was scanned."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection

from flux.core import diff, manifest
from flux.core.manifest import Manifest, Token
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.area import Spot, in_area
from flux.trees.beneath import open_regular
from flux.trees.observed import Observed
from flux.trees.scan import hash_file

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SMALL = 1 << 16


class BaseContents:
    """Files of the base. What changed since the scan has no known content: what was there is gone."""

    def __init__(self, root: int, base: Manifest, moved: Collection[str]) -> None:
        self._root = root
        self._base = base
        self._moved = set(moved)

    def open(self, path: str) -> int | None:
        """Open a file whose content is still the base's; ``None`` if it is not, or may not be read."""
        descriptor = self._open(path)
        if descriptor is not None and not self._is_same(descriptor, path):
            os.close(descriptor)
            return None
        return descriptor

    def _open(self, path: str) -> int | None:
        if path in self._moved:
            return None
        try:
            return open_regular(self._root, path)
        except OSError:
            return None

    def _is_same(self, descriptor: int, path: str) -> bool:
        status = os.fstat(descriptor)
        now = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
        return self._base[path].split(" ", 4)[4].startswith(now + " ")

    def digest(self, path: str) -> str | None:
        """Return the digest of a file of the base, and keep it in the base's manifest."""
        token = self._base[path]
        known = token.rpartition(" ")[2]
        if known != "-":
            return known
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            digest = _hash(descriptor, diff.size(token))
            # A file that is afterwards what was scanned was so all the time: any write would show in its times.
            if not self._is_same(descriptor, path):
                self._moved.add(path)
                return None
        finally:
            os.close(descriptor)
        self._base[path] = manifest.with_digest(token, digest)
        return digest


def _hash(descriptor: int, size: int) -> str:
    """Hash a file that has just been opened; with one call for a small one whose size is as expected."""
    if size < _SMALL:
        data = os.read(descriptor, _SMALL)
        if len(data) == size:
            return f"sha256:{hashlib.sha256(data).hexdigest()}"
    return hash_file(descriptor)


class RunContents:
    """Files as the run left them."""

    def __init__(self, observed: Observed, held: int, after: int, base: BaseContents, files: Files) -> None:
        self._observed = observed
        self._after = after
        self._base = base
        self._files = files
        self._directories = in_area(held)
        self._digests: dict[str, str | None] = {}
        self._last = ("", -1)  # the directory used last, which most often is the next one too

    def close(self) -> None:
        """Close what is open."""
        self._directories.close()

    def best_name(self, path: str) -> str:
        """Return the name of a file's inode under which its content is the easiest to get at."""
        if path not in self._observed.after_links:
            return path
        group = self._observed.after_links[path]
        return min(group, key=lambda name: (_PREFERENCE[self._observed.source(name)], name))

    def digest(self, path: str) -> str | None:
        """Return the digest of a file, ``None`` if it may not be read."""
        name = self.best_name(path)
        if name not in self._digests:
            self._digests[name] = self._hash(name)
        return self._digests[name]

    def _hash(self, name: str) -> str | None:
        source = self._observed.source(name)
        if source == "base":
            known = self._base.digest(self._observed.origins[name])
            if known is not None:
                return known
        try:
            descriptor = self.open(name)
        except OSError:
            return None
        try:
            return _hash(descriptor, diff.size(self._observed.after[name]))
        finally:
            os.close(descriptor)

    def spot(self, name: str) -> Spot | None:
        """Return the directory and the name of a file that can be taken out of the throwaway tree, else ``None``."""
        if self._observed.source(name) != "held":
            return None
        above, _, entry = name.rpartition("/")
        if above != self._last[0] or self._last[1] < 0:
            self._last = (above, self._directories.at(above or "/"))
        return self._last[1], entry

    def open_up(self, directory: int) -> None:
        """Allow a directory of the throwaway tree to be changed by its owner, who we are."""
        self._files.set_mode(Point.SCRATCH, directory, ".", stat.S_IRWXU)

    def open(self, name: str) -> int:
        """Open a file for reading. Raises ``OSError``."""
        spot = self.spot(name)
        if spot is None:
            return open_regular(self._after, name)
        directory, entry = spot
        try:
            return os.open(entry, _OPEN, dir_fd=directory)
        except PermissionError:  # it is our own, so its permissions are ours to change
            self._files.set_mode(Point.SCRATCH, directory, entry, stat.S_IRUSR | stat.S_IWUSR)
            return os.open(entry, _OPEN, dir_fd=directory)


_PREFERENCE = {"held": 0, "base": 1, "seen": 2}


def is_file(token: Token | None) -> bool:
    """Tell whether a token is a regular file's."""
    return token is not None and token.startswith("f ")
