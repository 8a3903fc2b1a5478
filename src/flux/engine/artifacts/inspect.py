"""Hashing what the object store has of an artifact, without keeping any of it (spec: generations, §6)."""

from __future__ import annotations

from flux.core import objects
from flux.core.artifact import damaged, digest_of
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.engine.artifacts.remote import copy_keys, read_copy, read_manifest
from flux.ports.artifacts import ObjectStore


def inspect(store: ObjectStore, reference: ArtifactReference) -> None:
    """Hash the manifest, and of each layer every part of at least one copy.

    Raises:
        FluxError: ``internal`` (data loss) that names the part, ``not_found``, ``unavailable``.
    """
    for layer_id in read_manifest(store, reference).layers:
        _inspect_layer(store, layer_id)


def _inspect_layer(store: ObjectStore, layer_id: str) -> None:
    found = damaged("layer", layer_id, "the object store has no copy of it")
    for key in copy_keys(store, layer_id):
        try:
            _inspect_copy(store, layer_id, key)
            return
        except FluxError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            found = error
    raise found


def _inspect_copy(store: ObjectStore, layer_id: str, key: str) -> None:
    copy = read_copy(store, key)
    for name, least in copy.pack_sizes().items():
        data = store.get(objects.pack_key(name))
        if digest_of(data) != name.partition("-")[0] or len(data) < least:
            raise damaged("layer", layer_id, f"its pack {name[:16]} is not what was uploaded")
