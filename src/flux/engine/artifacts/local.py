"""What this machine has of an artifact: contents, hashed as they are read, and the removal of what nothing needs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from types import TracebackType

from flux.core import paths
from flux.core.artifact import damaged, digest_of
from flux.core.blocks import Block
from flux.core.errors import Code, FluxError
from flux.trees.beneath import DIRECTORY, open_regular
from flux.trees.layers.store import LayerStore

# Something else than the file that was captured: nothing, a link, a device.
_NOT_IT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EXDEV})


class Contents:
    """Reads blocks of one layer's tree. Use it as a context.

    Args:
        layers: where the layer is kept.
        layer_id: which one.

    Raises:
        FluxError: from every method: ``internal`` (data loss) where a content is not what was captured,
            ``unavailable`` where the disk does not give it.
    """

    def __init__(self, layers: LayerStore, layer_id: str) -> None:
        self._layer_id = layer_id
        self._tree = layers.tree(layer_id)
        self._root = -1
        self._open = ("", -1)

    def __enter__(self) -> Contents:
        try:
            self._root = os.open(self._tree, DIRECTORY)
        except OSError as error:
            raise self._error(error, "/") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in (self._open[1], self._root):
            if descriptor >= 0:
                os.close(descriptor)
        self._root, self._open = -1, ("", -1)

    def read(self, block: Block) -> bytes:
        """Return a block's content, which has the digest that the layer says."""
        try:
            data = os.pread(self._file(block.path), block.length, block.offset)
        except OSError as error:
            raise self._error(error, block.path) from error
        if digest_of(data) != block.digest:
            raise damaged("layer", self._layer_id, f"{_shown(block.path)} is not what was captured")
        return data

    def _file(self, path: str) -> int:
        if self._open[0] != path:
            opened = open_regular(self._root, path)
            if self._open[1] >= 0:
                os.close(self._open[1])
            self._open = (path, opened)
        return self._open[1]

    def _error(self, error: OSError, path: str) -> FluxError:
        if error.errno in _NOT_IT:
            return damaged("layer", self._layer_id, f"{_shown(path)} is not the file that was captured")
        return FluxError(
            Code.UNAVAILABLE,
            f"cannot read {_shown(path)} of the layer {self._layer_id[:16]}: {error.strerror}: see the disk; it is "
            "tried again",
        )


def _shown(path: str) -> str:
    return paths.printable(path)[:120]


def keep_only(layers: LayerStore, artifact_ids: Iterable[str]) -> int:
    """Remove all other artifacts, and layers that no artifact here needs; return the bytes of their contents.

    Layers are listed before the drafts under way, and those before the artifacts: a layer that is about to be named is
    seen in one of them. Removal is in reverse of publishing: manifests first.
    """
    kept = frozenset(artifact_ids)
    there = layers.layers()
    unnamed = layers.unnamed()
    for artifact_id in layers.artifacts():
        if artifact_id not in kept:
            layers.remove_artifact(artifact_id)
    needed: set[str] = set(unnamed)
    for artifact_id in layers.artifacts():
        needed.update(layers.read_artifact(artifact_id).layers)
    freed = 0
    for layer_id in there:
        if layer_id not in needed:
            freed += _size(layers, layer_id)
            layers.remove_layer(layer_id)
    return freed


def _size(layers: LayerStore, layer_id: str) -> int:
    try:
        return layers.read(layer_id).size
    except FluxError:  # it is not what it was; it goes all the same
        return 0
