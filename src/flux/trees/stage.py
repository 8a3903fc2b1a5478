"""Staging: the new contents of a changeset, taken out of the throwaway tree by renames (spec: speculation)."""

from __future__ import annotations

import errno
import os
from collections import defaultdict

import msgspec

from flux.core import diff, paths
from flux.core.changeset import Change, Staged, Unstaged
from flux.core.limits import Caps
from flux.core.manifest import EntryType, Manifest
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.contents import BaseContents, RunContents
from flux.trees.observed import Observed

_MODE = 0o600
_MODE_TEXT = "600"
# A new file of at least this many bytes is worth looking for in the whole base.
_WORTH_A_SEARCH = 1 << 20
_NO_RENAME = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL})


class Stager:
    """Stages the contents of one changeset.

    Args:
        base: the base's manifest, with the digests that are known.
        observed: what the run left.
        blobs: the open directory that takes the contents.
    """

    def __init__(
        self,
        base: Manifest,
        base_contents: BaseContents,
        run_contents: RunContents,
        observed: Observed,
        blobs: int,
        caps: Caps,
        files: Files,
    ) -> None:
        self._base = base
        self._base_contents = base_contents
        self._run_contents = run_contents
        self._origins = observed.origins
        self._after = observed.after
        self._blobs = blobs
        self._caps = caps
        self._files = files
        self._owner = (str(os.geteuid()), str(os.getegid()))
        self._number = 0
        self._total = 0
        self._done: dict[str, Staged | Unstaged] = {}
        self._by_content: dict[tuple[int, str], str] = {}
        self._by_size: dict[int, list[str]] | None = None
        self.unstaged: list[Unstaged] = []

    def know(self, changes: list[Change]) -> None:
        """Take note of the contents that the base is known to hold: those of the touched entries."""
        for change in changes:
            before = change.before
            if before is not None and before.type is EntryType.FILE and before.digest is not None:
                self._by_content.setdefault((before.size, before.digest), change.location)

    def stage(self, change: Change) -> Change:
        """Return the change with its content staged, if it needs any; what cannot be staged is noted."""
        after = change.after
        if after is None or after.type is not EntryType.FILE or not _needs_content(change):
            return change
        path = change.location
        name = self._run_contents.best_name(path)
        if name not in self._done:
            self._done[name] = self._stage(path, name, after.size, after.digest)
        staged = self._done[name]
        if isinstance(staged, Unstaged):
            self.unstaged.append(unstaged(path, staged.reason, after.size))
            return change
        return msgspec.structs.replace(change, staged=staged)

    def _stage(self, path: str, name: str, size: int, digest: str | None) -> Staged | Unstaged:
        reference = self._reference(name, size, digest)
        if reference is not None:
            text, encoded = paths.to_json(reference)
            return Staged(reference=text, reference_base64=encoded)
        if size > self._caps.file_bytes:
            return unstaged(path, f"it is larger than {self._caps.file_bytes} bytes, the most that is staged of a file")
        if digest is None:
            return unstaged(path, "its content cannot be read")
        if self._total + size > self._caps.total_bytes:
            return unstaged(
                path, f"with it more than {self._caps.total_bytes} bytes, the most for one changeset, are staged"
            )
        blob = f"{self._number:06d}"
        self._take(name, blob)
        self._number += 1
        self._total += size
        return Staged(blob=blob)

    def _reference(self, name: str, size: int, digest: str | None) -> str | None:
        if digest is None or size == 0:
            return None
        origin = self._origins.get(name)
        if origin is not None and self._base[origin].endswith(digest):
            return origin
        known = self._by_content.get((size, digest))
        if known is None and size >= _WORTH_A_SEARCH:
            known = next((path for path in self.same_size(size) if self._base_contents.digest(path) == digest), None)
        return known

    def same_size(self, size: int) -> list[str]:
        """Return the files of the base that have a size."""
        if self._by_size is None:
            self._by_size = defaultdict(list)
            for path, token in self._base.items():
                if token.startswith("f "):
                    self._by_size[diff.size(token)].append(path)
        return self._by_size.get(size, [])

    def _take(self, name: str, blob: str) -> None:
        """Move a content out of the throwaway tree, which costs nothing; copy it where that is impossible."""
        if self._move(name, blob):
            self._tidy(name, blob)
            return
        source = self._run_contents.open(name)
        try:
            target = self._files.create(Point.STAGE, self._blobs, blob, _MODE)
            try:
                self._files.copy(Point.STAGE, source, target)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _move(self, name: str, blob: str) -> bool:
        spot = self._run_contents.spot(name)
        if spot is None:
            return False
        try:
            self._files.rename_new(Point.STAGE, *spot, self._blobs, blob)
        except OSError as error:
            if error.errno in _NO_RENAME:
                return False
            if error.errno != errno.EACCES:
                raise
            # The run closed the directory to its owner.
            self._run_contents.open_up(spot[0])
            self._files.rename_new(Point.STAGE, *spot, self._blobs, blob)
        return True

    def _tidy(self, name: str, blob: str) -> None:
        """Make a blob ours: the attributes that it had are in the changes, and set again by an apply."""
        _, mode, uid, gid, _ = self._after[name].split(" ", 4)
        if (uid, gid) != self._owner:
            self._files.set_owner(Point.STAGE, self._blobs, blob, os.geteuid(), os.getegid())
        if mode != _MODE_TEXT:
            self._files.set_mode(Point.STAGE, self._blobs, blob, _MODE)


def _needs_content(change: Change) -> bool:
    before = change.before
    return before is None or before.type is not EntryType.FILE or "content" in change.attributes


def unstaged(path: str, reason: str, size: int | None = None) -> Unstaged:
    """Return the note that a path cannot be carried."""
    text, encoded = paths.to_json(path)
    return Unstaged(path=text, path_base64=encoded, reason=reason, size=size)
