"""Building the new entries in their slots, complete with content and attributes, before anything is installed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping

from flux.core import conflict
from flux.core.changeset import Entry
from flux.core.manifest import EntryType, Manifest
from flux.core.plan import New, Plan, token_of
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import metadata
from flux.trees.area import Spot, in_area, in_workspace
from flux.trees.beneath import open_regular
from flux.trees.blobs import Blob
from flux.trees.journal import Attributes
from flux.trees.scan import entry, hash_file, with_content
from flux.trees.survey import gone, slot_of

_STEP = Point.APPLY_PREPARE
_NODES = {
    EntryType.FIFO: stat.S_IFIFO,
    EntryType.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryType.BLOCK_DEVICE: stat.S_IFBLK,
}
# Why a file cannot get another name although its content is at hand: it is then copied.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})


class Builder:
    """Builds all new entries of one plan.

    Args:
        blobs: the changeset's staged contents, open; ``None`` if it has none.
        staged: what is known of each blob.
        base: the reviewed manifest, which says whether a file that moves is still itself.
    """

    def __init__(
        self,
        *,
        changeset_id: str,
        files: Files,
        root: int,
        area: int,
        blobs: int | None,
        staged: Mapping[str, Blob],
        base: Manifest,
    ) -> None:
        self._changeset_id = changeset_id
        self._files = files
        self._root = root
        self._area = area
        self._blobs = blobs
        self._staged = dict(staged)
        self._base = base
        self._inside = in_area(area)
        self._covered: Collection[str] = ()
        self._workspace = in_workspace(root)

    def build(self, plan: Plan) -> list[int]:
        """Build everything; return the inode that waits in each slot, 0 for removals."""
        try:
            late: list[New] = []
            self._covered = plan.stays
            places = {new.path: new.place for new in plan.new}
            for new in plan.new:
                if new.fate.kind == "same":
                    late.append(new)
                else:
                    self._make(new)
            for new in late:
                self._files.link(_STEP, *self._spot(places[new.fate.value]), *self._spot(new.place))
            self._settle_directories(plan)
            return self._inodes(plan)
        finally:
            self._inside.close()
            self._workspace.close()

    def _spot(self, place: str) -> Spot:
        return self._inside.parent(place)

    def _make(self, new: New) -> None:
        kind = new.fate.kind
        if kind == "blob":
            self._from_blob(new)
        elif kind == "copy":
            self._copy(new, new.fate.value)
        elif kind == "move":
            self._move(new)
        elif kind == "kept":
            self._join(new)
        elif new.entry.type is EntryType.DIRECTORY:
            self._files.make_directory(_STEP, *self._spot(new.place))
        else:
            self._from_entry(new)

    def _from_blob(self, new: New) -> None:
        """Give the blob itself another name where it can become the file; else copy it."""
        name = new.fate.value
        blob = self._staged[name]
        spot = self._spot(new.place)
        new_attributes = metadata.wanted(new.entry)
        assert self._blobs is not None, "a blob was verified in it"
        # An inode with more names is also somebody else's: it may be shared only if nothing has to be changed on it.
        if blob.links == 1 or blob.attributes == new_attributes:
            try:
                self._files.link(_STEP, self._blobs, name, *spot)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
            else:
                self._staged[name] = Blob(new_attributes, blob.links + 1)
                metadata.settle(self._files, _STEP, spot, blob.attributes, new_attributes)
                return
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._blobs)
        try:
            self._fill(source, new)
        finally:
            os.close(source)

    def _copy(self, new: New, origin: str) -> None:
        try:
            source = open_regular(self._root, origin)
        except OSError as error:
            raise gone(self._changeset_id, origin) from error
        try:
            digest = self._fill(source, new)
        finally:
            os.close(source)
        if new.entry.digest is not None and digest != new.entry.digest:
            found = entry(self._root, origin)
            raise conflict.refusal(self._changeset_id, [conflict.conflict(origin, self._base.get(origin), found)])

    def _fill(self, source: int, new: New) -> str:
        spot = self._spot(new.place)
        target = self._files.create(_STEP, *spot)
        try:
            self._files.copy(_STEP, source, target)
            os.lseek(target, 0, os.SEEK_SET)
            digest = hash_file(target)
            status = os.fstat(target)
        finally:
            os.close(target)
        metadata.settle(self._files, _STEP, spot, metadata.of(status, {}), metadata.wanted(new.entry))
        return digest

    def _move(self, new: New) -> None:
        """Give the file that leaves its name unaltered the new one, if it is still the file that was reviewed."""
        origin = new.fate.value
        source = self._origin(origin)
        spot = self._spot(new.place)
        token = self._base[origin].split(" ", 8)
        try:
            status = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
            same = (status.st_ino, status.st_mtime_ns, status.st_nlink) == (int(token[7]), int(token[5]), 1)
            if same and stat.S_ISREG(status.st_mode):
                self._files.link(_STEP, *source, *spot)
                return
        except FileNotFoundError as error:
            raise gone(self._changeset_id, origin) from error
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
        self._copy(new, origin)

    def _join(self, new: New) -> None:
        """Give the file that stays at a path another name; one that no change covers is compared with what it was."""
        origin = new.fate.value
        try:
            self._files.link(_STEP, *self._origin(origin), *self._spot(new.place))
        except FileNotFoundError as error:
            raise gone(self._changeset_id, origin) from error
        if origin in self._covered:
            return
        linked = with_content(self._area, new.place, entry(self._area, new.place) or "")
        expected = token_of(new.entry)
        if conflict.differs(expected, linked, by_content=True) is not conflict.Difference.EQUAL:
            raise conflict.refusal(self._changeset_id, [conflict.conflict(origin, expected, linked)])

    def _origin(self, path: str) -> Spot:
        try:
            return self._workspace.parent(path)
        except OSError as error:
            raise gone(self._changeset_id, path) from error

    def _from_entry(self, new: New) -> None:
        """Make what needs no content: a symlink, a node or an empty file."""
        spot, wanted = self._spot(new.place), new.entry
        if wanted.type is EntryType.SYMLINK:
            self._files.symlink(_STEP, wanted.link_target or "", *spot)
        elif wanted.type in _NODES:
            self._files.make_node(_STEP, *spot, 0o600 | _NODES[wanted.type], wanted.rdev)
        else:
            os.close(self._files.create(_STEP, *spot))
        status, current = metadata.read(spot)
        symlink = stat.S_ISLNK(status.st_mode)
        metadata.settle(self._files, _STEP, spot, current, metadata.wanted(wanted), symlink=symlink)

    def _settle_directories(self, plan: Plan) -> None:
        """Directories get their attributes last, the deepest first, as filling them changes their times."""
        for new in reversed(plan.new):
            if new.entry.type is EntryType.DIRECTORY:
                spot = self._spot(new.place)
                _, current = metadata.read(spot)
                metadata.settle(self._files, _STEP, spot, current, self._movable(new.place, new.entry))

    def _movable(self, place: str, after: Entry) -> Attributes:
        """Return a directory's attributes; one that is to be renamed stays writable for its owner until it has been."""
        wanted = metadata.wanted(after)
        if os.geteuid() == 0 or place.count("/") > 1:
            return wanted
        return Attributes(wanted.mode | 0o700, wanted.uid, wanted.gid, wanted.mtime_ns, wanted.xattrs)

    def _inodes(self, plan: Plan) -> list[int]:
        inodes = [0] * len(plan.steps)
        for new in plan.new:
            if new.place.count("/") == 1:
                status = os.stat(new.place[1:], dir_fd=self._area, follow_symlinks=False)
                inodes[slot_of(new)] = status.st_ino
        return inodes


def late_modes(plan: Plan) -> list[tuple[str, int]]:
    """Return the new directories that ``Builder`` left writable for their owner, with the mode they are to have."""
    if os.geteuid() == 0:
        return []
    return [
        (new.path, new.entry.mode_bits)
        for new in plan.new
        if new.place.count("/") == 1 and new.entry.type is EntryType.DIRECTORY and new.entry.mode_bits & 0o700 != 0o700
    ]
