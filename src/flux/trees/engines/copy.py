"""The engines ``copy`` and ``reflink``: an entry-by-entry copy, checked against the original (spec: speculation).

``reflink`` is the same where the file system shares the contents' extents, so that no content is read or written.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from flux.core import diff, paths
from flux.core.manifest import Manifest
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import _native
from flux.trees.area import remove_tree
from flux.trees.beneath import DIRECTORY
from flux.trees.engines.duplicate import Duplication, unfaithful
from flux.trees.engines.held import scan_held
from flux.trees.engines.tree import PassedOver
from flux.trees.observed import Observed, links_by_inode
from flux.trees.scan import Scan, rescan

TREE = "tree"
_REPORTED_MAX = 3


def make(root: int, base: Scan, scratch: str, files: Files, *, skip: Collection[str] = ()) -> CopyTree:
    """Copy a workspace.

    Raises:
        PassedOver: if the copy is not what the workspace is.
        FluxError: ``exhausted`` if there is no space for it.
        OSError: if copying fails in another way.
    """
    if base.unreadable:
        path, reason = base.unreadable[0]
        raise PassedOver(f"{paths.printable(path)} cannot be read: {reason}")
    tree = CopyTree(scratch, files)
    try:
        files.make_directory(Point.SCRATCH, tree.parent, TREE)
        tree.open()
        Duplication(root, base.manifest, tree.held, files).run(base.nested)
        tree.settle(root, base, skip)
    except BaseException:
        tree.close()
        raise
    return tree


class CopyTree:
    """A copy of a workspace for one run."""

    def __init__(self, scratch: str, files: Files) -> None:
        self._files = files
        self._path = f"{scratch}/{TREE}"
        self._base = Scan(manifest={}, nested=[], unreadable=[], total_bytes=0)
        self._before: Manifest = {}
        self._skip: Collection[str] = ()
        self.parent = os.open(scratch, DIRECTORY)
        self.held = -1

    @property
    def tree(self) -> str:
        return self._path

    def open(self) -> None:
        """Open the copy, which has just been made."""
        self.held = os.open(TREE, DIRECTORY, dir_fd=self.parent)

    def settle(self, root: int, base: Scan, skip: Collection[str]) -> None:
        """Remember what the copy is before the run, and that it is what the workspace is.

        Raises:
            PassedOver: where it differs although the workspace has not changed meanwhile.
        """
        # What the run changes must get times that nothing in the copy has yet.
        _native.next_tick()
        self._base, self._skip = base, skip
        changed, _, _, _, _, linked = _native.scan(self.held, paths.ROOT, [], base.manifest)
        self._before = {path: token for path, token in {**base.manifest, **changed}.items() if token}
        within = self._within(self._before)
        found = unfaithful(
            base.manifest,
            links_by_inode(base.manifest, base.linked),
            within,
            links_by_inode(within, linked),
        )
        if found:
            for path in rescan(root, (paths.ROOT,), base.manifest, skip=skip):
                found.pop(path, None)
        if found:
            names = ", ".join(f"{paths.printable(path)} ({found[path]})" for path in sorted(found)[:_REPORTED_MAX])
            raise PassedOver(f"{len(found)} entries of the copy are not what they are in the workspace: {names}")

    def _within(self, manifest: Manifest) -> Manifest:
        """Return what of a scan of the copy belongs to the workspace."""
        outside = [*self._base.nested, *self._skip]
        if not outside:
            return manifest
        return {
            path: token
            for path, token in manifest.items()
            if not any(paths.is_within(path, place) for place in outside)
        }

    def observe(self, after: int) -> Observed:
        changed, linked = scan_held(self.held, self._files, self._before)
        now = {path: token for path, token in changed.items() if token}
        return Observed(
            before=self._base.manifest,
            after=now,
            touched=set(changed),
            before_links=links_by_inode(self._base.manifest, self._base.linked),
            after_links=links_by_inode(now, linked),
            origins=self._origins(changed),
            seen=set(),
        )

    def _origins(self, changed: Manifest) -> dict[str, str]:
        """Return the files that came unaltered from another path, with everything above them: same inode and times."""
        gone = {self._before[path]: path for path, token in changed.items() if not token and path in self._before}
        found = ((path, gone.get(token)) for path, token in changed.items() if token.startswith("f "))
        return {path: origin for path, origin in found if origin is not None and diff.size(changed[path])}

    def close(self) -> None:
        if self.parent < 0:
            return
        if self.held >= 0:
            os.close(self.held)
        try:
            self._remove()
        finally:
            os.close(self.parent)
            self.parent = self.held = -1

    def _remove(self) -> None:
        remove_tree(self._files, Point.SCRATCH, self.parent, TREE)
