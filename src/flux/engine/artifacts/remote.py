"""What the object store has of an artifact: its manifest, and the copies of its layers."""

from __future__ import annotations

import msgspec

from flux.core import objects
from flux.core.artifact import Artifact, Layer, PackIndex, damaged, decode_artifact, decode_layer, digest_of, missing
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.core.objects import StoredLayer
from flux.ports.artifacts import ObjectStore


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a layer in the object store. ``layer`` has the digest that is its id."""

    key: str
    layer: Layer
    index: PackIndex

    def pack_sizes(self) -> dict[str, int]:
        """Return the packs that this copy needs: name → the least bytes that each must have."""
        sizes = dict.fromkeys(self.index.packs, 0)
        for place in self.index.blocks.values():
            name = self.index.packs[place.pack]
            sizes[name] = max(sizes[name], place.offset + place.length)
        return sizes


def read_object(store: ObjectStore, key: str) -> bytes | None:
    """Return an object's content, ``None`` if there is none."""
    try:
        return store.get(key)
    except FluxError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        return None


def read_manifest(store: ObjectStore, reference: ArtifactReference) -> Artifact:
    """Return an artifact's manifest. Raises ``not_found``; ``internal`` (data loss) if it has another digest."""
    data = read_object(store, objects.artifact_key(reference.id))
    if data is None:
        raise missing("artifact", reference.id)
    return decode_artifact(data, reference.digest)


def copy_keys(store: ObjectStore, layer_id: str) -> list[str]:
    """Return the keys of all copies of a layer, sorted."""
    return [key for key, _, _ in store.list(f"{objects.LAYERS}{layer_id}/")]


def read_copy(store: ObjectStore, key: str) -> Copy:
    """Return a copy of a layer.

    Raises:
        FluxError: ``not_found``; ``internal`` (data loss) if it is not the layer that its key names.
    """
    layer_id = key.split("/")[1]
    data = read_object(store, key)
    if data is None:
        raise missing("layer", layer_id)
    if digest_of(data) != objects.layer_digest(key):
        raise damaged("layer", layer_id, "its copy in the object store does not have the digest that names it")
    stored = objects.decode(data, key, StoredLayer)
    copy = Copy(key=key, layer=decode_layer(bytes(stored.layer), layer_id), index=stored.index)
    if stored.index.layer_id != layer_id or not _is_sound(stored.index):
        raise damaged("layer", layer_id, "what says where its blocks lie is not sound")
    return copy


def _is_sound(index: PackIndex) -> bool:
    return all(
        0 <= place.pack < len(index.packs) and place.offset >= 0 and place.length > 0 for place in index.blocks.values()
    )
