"""Writing a layer's tree from its description and its blocks, exactly as it was captured (spec: generations, §6).

Everything is made empty first, then blocks are written wherever they belong, in whatever order they come; attributes
come last, the deepest directories' before those above them. Nothing is synced here: publishing the layer does that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from flux.core import paths
from flux.core.artifact import Layer, damaged, missing
from flux.core.blocks import Block, blocks
from flux.core.manifest import EntryType, Fingerprint, parse
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import metadata
from flux.trees.area import Spot, in_area
from flux.trees.beneath import DIRECTORY
from flux.trees.journal import Attributes
from flux.trees.layers.store import TREE

_STEP = Point.LAYER_WRITE
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NODES = {
    EntryType.FIFO: stat.S_IFIFO,
    EntryType.SOCKET: stat.S_IFSOCK,
    EntryType.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryType.BLOCK_DEVICE: stat.S_IFBLK,
}


def build(files: Files, draft: str, layer: Layer, layer_id: str, source: Iterable[tuple[str, bytes]]) -> None:
    """Write the tree of ``layer`` into a draft of ``LayerStore``.

    Args:
        files: the mutating file calls.
        draft: the draft's path; the tree must not be there yet.
        layer: what the tree is.
        layer_id: its name, for errors.
        source: the verified content of every block that is not a hole, by digest, each once, in any order.

    Raises:
        FluxError: ``internal`` (data loss) if the layer does not describe a tree; ``not_found`` if a block is missing.
        OSError: if a call fails.
    """
    above = os.open(draft, DIRECTORY)
    try:
        files.make_directory(_STEP, above, TREE)
        root = os.open(TREE, DIRECTORY, dir_fd=above)
    finally:
        os.close(above)
    builder = _Builder(files, root, layer, layer_id)
    try:
        builder.make()
        builder.fill(source)
        builder.finish()
    finally:
        builder.close()
        os.close(root)


class _Builder:
    def __init__(self, files: Files, root: int, layer: Layer, layer_id: str) -> None:
        self._files = files
        self._layer = layer
        self._layer_id = layer_id
        self._root = root
        self._inside = in_area(root)
        self._entries = {paths.from_portable(path): token for path, token in layer.entries.items()}
        self._first = self._first_names()
        self._open = ("", -1)

    def close(self) -> None:
        self._close_file()
        self._inside.close()

    def _first_names(self) -> dict[str, str]:
        """Return, for every name of a file that has several, the one that is made; the others are links to it."""
        groups: dict[int, list[str]] = {}
        for path in sorted(self._entries):
            found = self._read(path)
            if found.inode and found.type is not EntryType.DIRECTORY:
                groups.setdefault(found.inode, []).append(path)
        listed = {paths.from_portable(path) for path in self._layer.contents}
        first = [next((name for name in names if name in listed), names[0]) for names in groups.values()]
        return {name: made for names, made in zip(groups.values(), first, strict=True) for name in names}

    def make(self) -> None:
        """Make every entry, empty, under its first name."""
        for path in sorted(self._entries):
            if path == paths.ROOT or self._first.get(path, path) != path:
                continue
            found = parse(self._entries[path])
            if not self._entries.get(paths.parent(path), "").startswith("d "):
                raise damaged("layer", self._layer_id, f"{paths.printable(path)[:80]} lies in no directory")
            self._make(path, found)

    def _read(self, path: str) -> Fingerprint:
        parts = set(path.split("/")[1:])
        if not path.startswith("/") or (path != paths.ROOT and parts & {"", ".", ".."}):
            raise damaged("layer", self._layer_id, f"{paths.printable(path)[:80]!r} is no path in it")
        return parse(self._entries[path])

    def _make(self, path: str, found: Fingerprint) -> None:
        spot = self._inside.parent(path)
        if found.type is EntryType.DIRECTORY:
            self._files.make_directory(_STEP, *spot)
        elif found.type is EntryType.FILE:
            os.close(self._files.create(_STEP, *spot))
        elif found.type is EntryType.SYMLINK:
            self._files.symlink(_STEP, found.target or "", *spot)
        else:
            self._files.make_node(_STEP, *spot, 0o600 | _NODES[found.type], found.rdev)

    def fill(self, source: Iterable[tuple[str, bytes]]) -> None:
        """Write every block to each of its places."""
        places: dict[str, list[Block]] = {}
        for block in blocks(self._layer, self._layer_id):
            places.setdefault(block.digest, []).append(block)
        for digest, data in source:
            for block in places.pop(digest, ()):
                descriptor = self._file(block.path)
                os.lseek(descriptor, block.offset, os.SEEK_SET)
                self._files.write(_STEP, descriptor, data)
        if places:
            raise missing("block", next(iter(places)))

    def _file(self, path: str) -> int:
        if self._open[0] != path:
            self._close_file()
            directory, name = self._inside.parent(path)
            self._open = (path, os.open(name, _WRITE, dir_fd=directory))
        return self._open[1]

    def _close_file(self) -> None:
        if self._open[1] >= 0:
            os.close(self._open[1])
        self._open = ("", -1)

    def finish(self) -> None:
        """Give files their length and everything its other names and attributes."""
        directories = []
        for path in sorted(self._entries):
            found = parse(self._entries[path])
            first = self._first.get(path, path)
            if found.type is EntryType.DIRECTORY:
                directories.append((path, found))
            elif first != path:
                self._files.link(_STEP, *self._inside.parent(first), *self._inside.parent(path))
            else:
                if found.type is EntryType.FILE:
                    self._files.extend(_STEP, self._file(path), found.size)
                self._settle(self._inside.parent(path), found)
        self._close_file()
        for path, found in sorted(directories, key=lambda item: len(paths.ancestors(item[0])), reverse=True):
            self._settle((self._root, ".") if path == paths.ROOT else self._inside.parent(path), found)

    def _settle(self, spot: Spot, found: Fingerprint) -> None:
        status, current = metadata.read(spot)
        wanted = Attributes(found.mode, found.uid, found.gid, found.mtime_ns, dict(found.xattrs))
        metadata.settle(self._files, _STEP, spot, current, wanted, symlink=stat.S_ISLNK(status.st_mode))
