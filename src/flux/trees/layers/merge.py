"""x"""

from __future__ import annotations

from flux.ports.files import Files
from flux.trees.layers.store import LayerStore


def merged(store: LayerStore, files: Files, layers: tuple[str, ...]) -> tuple[str, ...]:
    return layers
