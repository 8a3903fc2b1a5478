"""Installing what was built: one rename a step, each displaced entry checked, then attributes and times."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from flux.core import conflict, paths
from flux.core.conflict import Conflict
from flux.core.errors import FluxError
from flux.core.manifest import Manifest, Token
from flux.core.plan import Plan, Step, expected_tokens
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import _native, metadata
from flux.trees.area import Spot, in_workspace
from flux.trees.beneath import open_beneath
from flux.trees.drift import find_differences
from flux.trees.journal import Amended, Begun, Parent
from flux.trees.scan import entry
from flux.trees.survey import gone

_STEP = Point.APPLY_INSTALL
_BATCH = 512


class Installer:
    """Carries out the renames and amendments of one journaled plan.

    Every method raises ``FluxError`` (``conflict``) if the workspace is not what was reviewed, ``OSError`` if a call
    fails; the caller rolls back.
    """

    def __init__(self, files: Files, root: int, area: int, begun: Begun, plan: Plan, base: Manifest) -> None:
        self._files = files
        self._root = root
        self._area = area
        self._begun = begun
        self._plan = plan
        self._base = base
        self._inodes = {parent.path: parent.inode for parent in begun.parents}
        self._widened = {parent.path: parent.widened for parent in begun.parents if parent.widened}
        self._directories = in_workspace(root)

    def widen(self) -> None:
        """Let their owner write into directories whose mode forbids it; ``finish`` puts the modes back."""
        for parent in self._begun.parents:
            if parent.widened:
                self._files.set_mode(_STEP, *self._spot(paths.from_bytes(parent.path)), parent.widened)

    def install(self) -> None:
        """Carry out every step; what they displace is checked a batch at a time."""
        displaced: list[int] = []
        for slot, step in enumerate(self._plan.steps):
            self._rename(slot, step)
            if step.kind != "create":
                displaced.append(slot)
            if len(displaced) == _BATCH:
                self._check_displaced(displaced)
                displaced.clear()
        self._check_displaced(displaced)

    def finish(self, late_modes: Sequence[tuple[str, int]]) -> None:
        """Amend attributes, put back modes and times, and check that no directory was moved meanwhile."""
        for path, mode in late_modes:
            self._files.set_mode(Point.APPLY_ATTRIBUTES, *self._spot(path), mode)
        for parent in self._begun.parents:
            if parent.widened:
                self._narrow(parent)
        for amended in self._begun.amended:
            self._amend(amended)
        self._directories.close()
        for parent in self._begun.parents:
            self._check_parent(parent)

    def close(self) -> None:
        """Close what is open."""
        self._directories.close()

    def _spot(self, path: str) -> Spot:
        """Return the directory that holds ``path``, if it is still the one of the journal."""
        try:
            directory, name = self._directories.parent(path)
        except OSError as error:
            raise gone(self._begun.changeset_id, paths.parent(path)) from error
        known = self._inodes.get(paths.to_bytes(paths.parent(path)))
        if known is not None and os.fstat(directory).st_ino != known:
            raise gone(self._begun.changeset_id, paths.parent(path))
        return directory, name

    def _rename(self, slot: int, step: Step) -> None:
        directory, name = self._spot(step.path)
        try:
            if step.kind == "create":
                self._files.rename_new(_STEP, self._area, str(slot), directory, name)
            elif step.kind == "replace":
                self._files.exchange(_STEP, self._area, str(slot), directory, name)
            else:
                self._files.rename_new(_STEP, directory, name, self._area, str(slot))
        except FileExistsError as error:
            raise self._refusal([conflict.conflict(step.path, None, entry(self._root, step.path))]) from error
        except FileNotFoundError as error:
            raise self._refusal([conflict.conflict(step.path, self._base.get(step.path), None)]) from error

    def _check_displaced(self, slots: Sequence[int]) -> None:
        """What left must be what was reviewed, whole: something may have changed just before the rename."""
        tokens = _native.lookup(self._area, [f"/{slot}" for slot in slots])
        for slot, token in zip(slots, tokens, strict=True):
            path = self._plan.steps[slot].path
            expected = expected_tokens(self._plan.displaced[slot], self._base)
            expected[path] = self._as_widened(path, expected.get(path))
            found = find_differences(self._area, f"/{slot}", token or None, expected, path)
            if found:
                raise self._refusal(found)

    def _as_widened(self, path: str, token: Token | None) -> Token:
        if token is None:
            raise gone(self._begun.changeset_id, path)
        widened = self._widened.get(paths.to_bytes(path))
        if widened is None:
            return token
        letter, _, rest = token.split(" ", 2)
        return f"{letter} {widened:o} {rest}"

    def _amend(self, amended: Amended) -> None:
        path = paths.from_bytes(amended.path)
        spot = self._spot(path)
        status, current = metadata.read(spot)
        old = amended.old
        if status.st_ino != amended.inode or (current.mode, current.uid, current.gid, current.xattrs) != (
            old.mode,
            old.uid,
            old.gid,
            old.xattrs,
        ):
            raise self._refusal([conflict.conflict(path, self._base.get(path), entry(self._root, path))])
        symlink = stat.S_ISLNK(status.st_mode)
        metadata.settle(self._files, Point.APPLY_ATTRIBUTES, spot, current, amended.new, symlink=symlink)

    def _refusal(self, found: list[Conflict]) -> FluxError:
        return conflict.refusal(self._begun.changeset_id, found)

    def _narrow(self, parent: Parent) -> None:
        path = paths.from_bytes(parent.path)
        directory, name = self._spot(path)
        try:
            inode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return  # it left; in the trash its mode does not matter
        if inode == parent.inode:
            self._files.set_mode(Point.APPLY_ATTRIBUTES, directory, name, parent.mode)

    def _check_parent(self, parent: Parent) -> None:
        path = paths.from_bytes(parent.path)
        if parent.widened and any(step.path == path for step in self._plan.steps):
            return  # it left
        try:
            descriptor = open_beneath(self._root, path, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise gone(self._begun.changeset_id, path) from error
        try:
            if os.fstat(descriptor).st_ino != parent.inode:
                raise gone(self._begun.changeset_id, path)
        finally:
            os.close(descriptor)
