"""The inverse of an applied changeset, staged from what the apply kept, by links: free of copying."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from typing import TypeAlias

import msgspec

from flux.core import paths
from flux.core.changeset import Change, Changes, Entry, Staged, Unstaged
from flux.core.manifest import EntryType, Token
from flux.core.plan import token_of
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import journal
from flux.trees.area import TRASH, Spot, in_area
from flux.trees.beneath import DIRECTORY
from flux.trees.scan import hash_file
from flux.trees.trash import place_of

AppliedTokens: TypeAlias = dict[str, Token | None]
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
_LOST = "what was there before is not kept"


def stage_inverse(
    directory: int, changes: Changes, blobs: int, files: Files
) -> tuple[Changes, list[Unstaged], AppliedTokens]:
    """Stage the inverse of an applied changeset.

    Args:
        directory: the applied changeset's directory, open: its journal and trash.
        changes: what was applied.
        blobs: the open, empty directory that takes the staged contents of the inverse.

    Returns:
        The inverse changes; what cannot be put back; and each touched path as the apply left it, ``None`` where it left
        nothing. ``core.conflict.merge_applied`` makes the base of the inverse of it and a fresh manifest.

    Raises:
        FluxError: ``internal`` if the journal is damaged.
        OSError: if staging fails.
    """
    forward = {change.location: change for change in changes.every()}
    source = _Kept(directory, blobs, files, forward)
    try:
        inverse = [source.invert(change) for change in forward.values()]
    finally:
        source.close()
    applied = {path: None if change.after is None else token_of(change.after) for path, change in forward.items()}
    return Changes.of(inverse, unchanged=changes.unchanged), source.unstaged, applied


class _Kept:
    """What the apply kept: displaced entries in the trash, or still in the workspace under another name."""

    def __init__(self, directory: int, blobs: int, files: Files, forward: Collection[str]) -> None:
        self._forward = forward
        self._blobs = blobs
        self._files = files
        record = journal.read(directory)
        self._slots = {} if record is None else {step.path: slot for slot, step in enumerate(record.begun.steps)}
        self._live = {} if record is None else dict(record.begun.live)
        self._trash = _open_trash(directory)
        self._directories = None if self._trash is None else in_area(self._trash)
        self._number = 0
        self.unstaged: list[Unstaged] = []

    def close(self) -> None:
        if self._directories is not None:
            self._directories.close()
        if self._trash is not None:
            os.close(self._trash)

    def invert(self, change: Change) -> Change:
        before, after = change.after, change.before
        staged, attributes = None, change.attributes
        if after is not None and _needs_content(change):
            staged, after = self._stage(change, after)
            other = None if staged is None else staged.reference_path
            if other is not None and other not in self._forward:
                attributes = (*attributes, "links")  # one more name of an unchanged file: core.links.joins
        return msgspec.structs.replace(
            change, before=before, after=after, attributes=attributes, staged=staged, risks=()
        )

    def _stage(self, change: Change, after: Entry) -> tuple[Staged | None, Entry]:
        raw = paths.to_bytes(change.location)
        other = self._live.get(raw)
        if other is not None:
            text, encoded = paths.to_json(paths.from_bytes(other))
            return Staged(reference=text, reference_base64=encoded), after
        place = place_of(raw, self._slots)
        try:
            if place is None or self._directories is None:
                raise FileNotFoundError(change.location)
            name = self._take(self._directories.parent(place), after)
        except FileNotFoundError:
            self.unstaged.append(
                Unstaged(path=change.path, path_base64=change.path_base64, reason=_LOST, size=after.size)
            )
            return None, after
        if after.digest is None and after.type is EntryType.FILE:
            after = msgspec.structs.replace(after, digest=self._digest(name))
        return Staged(blob=name), after

    def _take(self, source: Spot, after: Entry) -> str:
        name = f"{self._number:06d}"
        try:
            self._files.link(Point.STAGE, *source, self._blobs, name)
        except OSError as error:
            if error.errno not in _NO_LINK or after.type is not EntryType.FILE:
                raise
            self._copy(source, name)
        self._number += 1
        return name

    def _copy(self, source: Spot, name: str) -> None:
        origin = os.open(source[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source[0])
        try:
            target = self._files.create(Point.STAGE, self._blobs, name)
            try:
                self._files.copy(Point.STAGE, origin, target)
            finally:
                os.close(target)
        finally:
            os.close(origin)

    def _digest(self, name: str) -> str | None:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._blobs)
        except PermissionError:
            return None
        try:
            return hash_file(descriptor)
        finally:
            os.close(descriptor)


def _open_trash(directory: int) -> int | None:
    try:
        return os.open(TRASH, DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        return None


def _needs_content(change: Change) -> bool:
    """Tell whether the inverse of ``change`` has to make a file (or put a socket back) that the apply displaced."""
    before, after = change.before, change.after
    if before is None or before.type not in (EntryType.FILE, EntryType.SOCKET):
        return False
    return after is None or after.type is not before.type or "content" in change.attributes
