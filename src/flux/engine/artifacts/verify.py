"""Hashing what this machine has of an artifact (spec: generations, §6): nothing is repaired, nothing removed."""

from __future__ import annotations

import os

from flux.core.artifact import Layer, damaged, digest_of, encode, missing
from flux.core.errors import FluxError
from flux.core.node import ArtifactReference
from flux.trees.beneath import DIRECTORY
from flux.trees.layers.describe import describe, prefix_of
from flux.trees.layers.store import LayerStore
from flux.trees.privilege import is_privileged


def verify(layers: LayerStore, reference: ArtifactReference) -> None:
    """Hash every content and every entry of an artifact.

    Raises:
        FluxError: ``internal`` (data loss) that names the first path which is not what was captured; ``not_found``.
    """
    artifact = layers.read_artifact(reference.id, reference.digest)
    for layer_id in artifact.layers:
        _verify_layer(layers, layer_id)


def _verify_layer(layers: LayerStore, layer_id: str) -> None:
    layer = layers.read(layer_id)
    try:
        tree = os.open(layers.tree(layer_id), DIRECTORY)
    except OSError as error:
        raise missing("layer", layer_id) from error
    try:
        found = describe(tree, prefix_of(privileged=is_privileged())).layer
    except OSError as error:
        raise damaged("layer", layer_id, f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(tree)
    if digest_of(encode(found)) != layer_id:
        raise _difference(layer_id, layer, found)


def _difference(layer_id: str, layer: Layer, found: Layer) -> FluxError:
    for path in sorted(layer.entries.keys() | found.entries.keys()):
        if layer.entries.get(path) != found.entries.get(path) or layer.contents.get(path) != found.contents.get(path):
            return damaged("layer", layer_id, f"{path[:120]} is not what was captured")
    return damaged("layer", layer_id, "it is not what was captured")
