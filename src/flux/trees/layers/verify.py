"""Whether saved layers are still what they were saved as, before anything is started on them (§5).

A layer's description is checked by its digest, once in the life of a process and again whenever its file changed. Its
tree is compared with the seal, its real metadata of when it was last known to be right: what differs is looked at
closely, attributes and content. That is done for layers of a bounded number of entries together, the nearest first, so
that a restore does not cost what the tree is large; an upload, and a look ordered by a person, hash everything.
"""

from __future__ import annotations

import os
import threading

from flux.core import paths
from flux.core.artifact import Artifact, Layer, damaged, decode_layer, digest_of
from flux.core.errors import FluxError
from flux.trees.beneath import DIRECTORY, open_regular
from flux.trees.layers.describe import hash_blocks, look, normal, prefix_of, seal_of
from flux.trees.layers.store import LayerStore
from flux.trees.privilege import is_privileged

#: How many entries are compared at a restore.
ENTRIES_MAX = 2000
# A description larger than this belongs to a layer of more entries than are compared.
_DESCRIPTION_MAX = 1 << 20


class Verifier:
    """Checks layers, and remembers the descriptions that it found right. Safe to use from several threads."""

    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._right: dict[str, tuple[int, ...]] = {}

    def check(self, artifact: Artifact) -> None:
        """Check an artifact's layers.

        Raises:
            FluxError: ``not_found`` if one is not there; ``internal`` (data loss) if one is not what was saved.
        """
        left = ENTRIES_MAX
        for layer_id in artifact.layers:
            self.check_description(layer_id)
            if left > 0 and self._store.stamp(layer_id)[2] <= _DESCRIPTION_MAX:
                layer = decode_layer(self._store.raw(layer_id), layer_id)
                left -= len(layer.entries)
                if left >= 0:
                    check_tree(self._store, layer_id, layer)

    def check_description(self, layer_id: str) -> None:
        """Check a layer's description by its digest, unless it is the very file that was checked before.

        Raises:
            FluxError: ``not_found``, ``internal`` (data loss).
        """
        stamp = self._store.stamp(layer_id)
        with self._lock:
            if self._right.get(layer_id) == stamp:
                return
        if digest_of(self._store.raw(layer_id)) != layer_id:
            raise damaged("layer", layer_id, "its description does not have the digest that names it")
        with self._lock:
            self._right[layer_id] = stamp


def check_tree(store: LayerStore, layer_id: str, layer: Layer, *, thorough: bool = False) -> None:
    """Compare a layer's tree with its seal, and what differs with its description; the seal is renewed if all is right.

    ``thorough``: hash everything.

    Raises:
        FluxError: ``internal`` (data loss), naming the first path that is not what was saved.
    """
    try:
        tree = os.open(store.tree(layer_id), DIRECTORY)
    except OSError as error:
        raise damaged("layer", layer_id, "its tree cannot be opened") from error
    try:
        entries = _look(tree, layer_id)
        now, sealed = seal_of(entries), {} if thorough else store.seal(layer_id)
        moved = [path for path, token in now.items() if sealed.get(path) != token]
        _compare(layer_id, layer, normal(entries, prefix_of(privileged=is_privileged())))
        for path in moved:
            _check_content(tree, layer_id, layer, path)
    finally:
        os.close(tree)
    if moved and not thorough:
        store.write_seal(layer_id, now)


def _look(tree: int, layer_id: str) -> dict[str, str]:
    try:
        return look(tree)
    except FluxError as error:
        raise damaged("layer", layer_id, error.message) from error


def _compare(layer_id: str, layer: Layer, found: dict[str, str]) -> None:
    entries = {paths.portable(path): token for path, token in found.items()}
    if entries == layer.entries:
        return
    wrong = sorted(
        path for path in entries.keys() | layer.entries.keys() if entries.get(path) != layer.entries.get(path)
    )
    raise damaged("layer", layer_id, f"{wrong[0][:200]!r} is not as it was saved ({len(wrong)} entries differ)")


def _check_content(tree: int, layer_id: str, layer: Layer, path: str) -> None:
    blocks = layer.contents.get(path)
    if not blocks:
        return
    descriptor = open_regular(tree, paths.from_portable(path))
    try:
        if hash_blocks(descriptor, os.fstat(descriptor).st_size) != blocks:
            raise damaged("layer", layer_id, f"the content of {path[:200]!r} is not as it was saved")
    finally:
        os.close(descriptor)
