"""Hashing what this machine has of an artifact (spec: generations, §6): nothing is repaired, nothing removed."""

from __future__ import annotations

from flux.core.artifact import missing
from flux.core.node import ArtifactReference
from flux.trees.layers.store import LayerStore
from flux.trees.layers.verify import check_tree


def verify(layers: LayerStore, reference: ArtifactReference) -> None:
    """Hash every content and every entry of an artifact.

    Raises:
        FluxError: ``internal`` (data loss) that names the first path which is not what was captured; ``not_found``.
    """
    artifact = layers.read_artifact(reference.id, reference.digest)
    for layer_id in artifact.layers:
        if not layers.has(layer_id):
            raise missing("layer", layer_id)
        check_tree(layers, layer_id, layers.read(layer_id), thorough=True)
