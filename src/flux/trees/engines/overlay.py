"""The engine ``overlay``: a writable layer over the workspace, made in constant time (spec: speculation).

The substrate mounts it, with ``index=on,redirect_dir=on`` as root and ``userxattr`` otherwise; here its directories are
made, and afterwards the layer is read.
"""

from __future__ import annotations

import os
from collections.abc import Hashable

import msgspec

from flux.core import paths
from flux.core.diff import inode, links
from flux.core.manifest import Manifest, Token
from flux.failpoints import Point
from flux.ports.files import Files
from flux.ports.substrate import Overlay
from flux.trees import _native, metadata
from flux.trees.area import remove_tree
from flux.trees.beneath import DIRECTORY
from flux.trees.engines.held import scan_held
from flux.trees.engines.tree import PassedOver
from flux.trees.observed import Observed, links_by_inode
from flux.trees.privilege import is_privileged
from flux.trees.probe import probe_overlay
from flux.trees.scan import Scan
from flux.trees.upper import TRUSTED, USER, Layer, Subtrees, foreign, read_layer, unsuitable
from flux.trees.workspace import UPPER, Workspace

WORK = "work"
_OVERLAY_MAGIC = 0x794C7630


def make(
    workspace: Workspace, root: int, base: Scan, scratch: str, files: Files, *, probe_cache: str | None
) -> OverlayTree:
    """Make the directories of an overlay over a workspace.

    Raises:
        PassedOver: if the overlay would not look, or behave, like the workspace.
        OSError: if they cannot be made.
    """
    privileged = is_privileged()
    _check_tree(base, privileged)
    if workspace.layout == "managed":
        if workspace.below is None:
            _check_stacking(workspace, root, base, scratch, privileged)
        problem = probe_overlay(None, scratch, files, probe_cache)
    elif _lies_within(scratch, root):
        raise PassedOver("the state directory lies inside the workspace")
    else:
        problem = probe_overlay(root, scratch, files, probe_cache)
    if problem is not None:
        raise PassedOver(problem)
    return OverlayTree(workspace, root, base, scratch, files)


def _check_tree(base: Scan, privileged: bool) -> None:
    reason = unsuitable(base.manifest)
    if reason is None and not privileged:
        if base.linked:
            reason = f"{paths.printable(base.linked[0])} has several names, which needs root to keep"
        else:
            path = foreign(base.manifest, os.geteuid(), os.getegid())
            reason = None if path is None else f"{paths.printable(path)} belongs to another user or group"
    if reason is not None:
        raise PassedOver(reason)


def _check_stacking(workspace: Workspace, root: int, base: Scan, scratch: str, privileged: bool) -> None:
    """A managed workspace is an overlay already, and the kernel stacks no more than two."""
    for layer in (scratch, *workspace.template):
        descriptor = os.open(layer, DIRECTORY)
        try:
            if _native.filesystem(descriptor) == _OVERLAY_MAGIC:
                raise PassedOver(f"{paths.printable(layer)} lies on an overlay, and three of them cannot be stacked")
        finally:
            os.close(descriptor)
    if privileged and base.linked and not _native.has_handles(root):
        raise PassedOver(
            f"{paths.printable(base.linked[0])} has several names, which a stacked overlay cannot keep here"
        )


def _lies_within(directory: str, root: int) -> bool:
    top = os.fstat(root)
    current = os.open(directory, DIRECTORY)
    try:
        while True:
            status = os.fstat(current)
            if (status.st_dev, status.st_ino) == (top.st_dev, top.st_ino):
                return True
            above = os.open("..", DIRECTORY, dir_fd=current)
            os.close(current)
            current = above
            if os.path.samestat(os.fstat(current), status):
                return False
    finally:
        os.close(current)


class OverlayTree:
    """An overlay for one run."""

    def __init__(self, workspace: Workspace, root: int, base: Scan, scratch: str, files: Files) -> None:
        self._base = base
        self._files = files
        self._prefix = TRUSTED if is_privileged() else USER
        self._scratch = os.open(scratch, DIRECTORY)
        self._held = -1
        tree = Overlay(
            lower=(workspace.directory,), upper=f"{scratch}/{UPPER}", work=f"{scratch}/{WORK}", throwaway=True
        )
        if workspace.below is not None:
            layers = (f"{workspace.directory}/{UPPER}", *workspace.template)
            tree = msgspec.structs.replace(tree, lower=layers, below=workspace.below, shared=True)
        elif workspace.layout == "managed":
            tree = msgspec.structs.replace(tree, lower=(), lower_descriptor=root)
        self._tree = tree
        try:
            self._make(root)
        except BaseException:
            self.close()
            raise

    @property
    def tree(self) -> Overlay:
        return self._tree

    @property
    def held(self) -> int:
        return self._held

    def _make(self, root: int) -> None:
        for name in (UPPER, WORK):
            self._files.make_directory(Point.SCRATCH, self._scratch, name)
        self._held = os.open(UPPER, DIRECTORY, dir_fd=self._scratch)
        # The layer's root is what the run sees as the workspace's root.
        wanted = metadata.read((root, "."))[1]
        spot = (self._scratch, UPPER)
        metadata.settle(self._files, Point.SCRATCH, spot, metadata.read(spot)[1], wanted)

    def observe(self, after: int) -> Observed:
        entries, _ = scan_held(self._held, self._files, None)
        layer = read_layer(entries, Subtrees(self._base.manifest), self._prefix)
        before_links = links_by_inode(self._base.manifest, self._base.linked)
        return _Names(layer, entries, self._base.manifest, before_links).observe(after)

    def close(self) -> None:
        if self._scratch < 0:
            return
        if self._held >= 0:
            os.close(self._held)
        try:
            for name in (UPPER, WORK):
                remove_tree(self._files, Point.SCRATCH, self._scratch, name)
        finally:
            os.close(self._scratch)
            self._scratch = self._held = -1


class _Names:
    """Finds out which names share an inode after the run, which the layer alone does not tell.

    A write through one name of a linked file of the base is seen through its other names too, which are not in the
    layer (``index=on``). The names of every group that was touched are therefore looked at as the run saw them.
    """

    def __init__(
        self, layer: Layer, entries: Manifest, base: Manifest, before_links: dict[str, frozenset[str]]
    ) -> None:
        self._layer = layer
        self._entries = entries
        self._base = base
        self._before_links = before_links
        self._seen = set(layer.incomplete)

    def observe(self, after: int) -> Observed:
        layer = self._layer
        wanted = sorted(self._candidates())
        tokens = dict(zip(wanted, _native.lookup(after, wanted), strict=True)) if wanted else {}
        # The layer's own inodes tell for sure which of its names belong together; how the run saw them, which others.
        inodes: dict[Token, Hashable] = {}
        identities: list[tuple[str, Hashable]] = []
        for path in layer.held & tokens.keys():
            identity = inodes[tokens[path]] = inode(self._entries[path])
            identities.append((path, identity))
        for path, token in tokens.items():
            if path not in layer.held and token:
                identities.append((path, inodes.get(token, token)))
                self._alias(path, token)
        return Observed(
            before=self._base,
            after=layer.after,
            touched=layer.touched,
            before_links=self._before_links,
            after_links=links(identities),
            origins=layer.origins,
            seen=self._seen,
        )

    def _candidates(self) -> set[str]:
        """Return the paths whose inode may have, or have had, other names; adds untouched names to the touched."""
        layer = self._layer
        found = {path for path in layer.held if self._entries[path].split(" ", 9)[8] != "1"}
        moved: dict[str, list[str]] = {}
        for path, origin in layer.origins.items():
            if origin in self._before_links:
                moved.setdefault(origin, []).append(path)
        groups = {self._before_links[path] for path in layer.touched if path in self._before_links}
        for group in groups:
            for name in group:
                found.update(moved.get(name, ()))
                if name not in layer.touched:
                    layer.touched.add(name)
                    found.add(name)
                elif name in layer.after:
                    found.add(name)
        return found

    def _alias(self, path: str, token: Token) -> None:
        origin = self._layer.origins.pop(path, path)
        self._layer.after[path] = token
        if _body(token) == _body(self._base.get(origin, "")):
            self._layer.origins[path] = origin
        else:
            self._seen.add(path)


def _body(token: Token) -> list[str]:
    """Return what tells an inode of the base from its copy in the layer: size, times of last write and last change."""
    return token.split(" ", 7)[4:7]
