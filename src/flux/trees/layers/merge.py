"""Keeping the stack of an artifact's layers low: a layer is merged with the one below when it is half as large.

So each layer is at most half as large as the one below it, there are never more than a few, and every entry is merged
a few times in its life, however often its sandbox is paused. Merging is a convenience: where it cannot be done, because
the disk is full or a layer is damaged, the stack stays as it is, and whoever needs the layer says what is wrong.

Contents are copied, not linked: linked names in another layer would count as names of the file that a sandbox sees.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from flux.core.artifact import Layer, damaged, digest_of, encode
from flux.core.blocks import blocks
from flux.core.errors import FluxError
from flux.ports.files import Files
from flux.trees.beneath import DIRECTORY, open_regular
from flux.trees.layers.build import build
from flux.trees.layers.describe import look, prefix_of, seal_of
from flux.trees.layers.fold import Unfoldable, fold
from flux.trees.layers.store import TREE, LayerStore
from flux.trees.privilege import is_privileged

#: Layers with more bytes of contents together are merged only when there are very many.
BYTES_MAX = 64 << 20
LAYERS_MAX = 64


def merged(store: LayerStore, files: Files, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Return a stack of layers, nearest first, that shows the same as ``layers`` and is low."""
    try:
        runs = plan([store.stamp(layer)[2] for layer in layers], [store.size(layer) for layer in layers])
        return tuple(_merge(store, files, layers[start:end]) for start, end in runs)
    except (OSError, FluxError, Unfoldable):
        return layers


def plan(weights: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return which layers, nearest first, become one: half-open ranges that cover all.

    Args:
        weights: how much each has to say, entries above all.
        sizes: bytes of their contents.
    """
    runs = [(index, index + 1, weight, size) for index, (weight, size) in enumerate(zip(weights, sizes, strict=True))]
    while True:
        crowded = len(runs) > LAYERS_MAX
        found = None
        for index, (one, other) in enumerate(itertools.pairwise(runs)):
            if crowded or (2 * one[2] >= other[2] and one[3] + other[3] <= BYTES_MAX):
                found = index
                break
        if found is None:
            return [(start, end) for start, end, _, _ in runs]
        one, other = runs[found : found + 2]
        runs[found : found + 2] = [(one[0], other[1], one[2] + other[2], one[3] + other[3])]


def _merge(store: LayerStore, files: Files, layers: tuple[str, ...]) -> str:
    if len(layers) == 1:
        return layers[0]
    prefix = prefix_of(privileged=is_privileged())
    parts = [store.read(layer) for layer in layers]
    result = parts[0]
    for below in parts[1:]:
        result = fold(result, below, prefix)
    layer_id = digest_of(encode(result))
    if store.has(layer_id):
        return layer_id
    draft = store.draft()
    try:
        build(files, draft, result, layer_id, _contents(store, result, layer_id, dict(zip(layers, parts, strict=True))))
        tree = os.open(f"{draft}/{TREE}", DIRECTORY)
        try:
            seal = seal_of(look(tree))
        finally:
            os.close(tree)
        return store.publish(draft, result, seal)
    except BaseException:
        store.discard(draft)
        raise


def _contents(store: LayerStore, result: Layer, layer_id: str, parts: dict[str, Layer]) -> Iterator[tuple[str, bytes]]:
    """Yield every block of the result once, read from whichever layer has it."""
    wanted = {block.digest for block in blocks(result, layer_id)}
    for source, layer in parts.items():
        tree = os.open(store.tree(source), DIRECTORY)
        held = ("", -1)
        try:
            for block in blocks(layer, source):
                if block.digest not in wanted:
                    continue
                if held[0] != block.path:
                    _close(held)
                    held = ("", -1)
                    held = (block.path, open_regular(tree, block.path))
                data = os.pread(held[1], block.length, block.offset)
                if digest_of(data) != block.digest:
                    raise damaged("layer", source, f"the content of {block.path!r} is not as it was saved")
                wanted.discard(block.digest)
                yield block.digest, data
        finally:
            _close(held)
            os.close(tree)


def _close(held: tuple[str, int]) -> None:
    if held[1] >= 0:
        os.close(held[1])
