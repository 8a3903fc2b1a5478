"""The artifacts of one node: ``ports.artifacts.Artifacts`` over a ``LayerStore`` and an object store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.engine.artifacts import local
from flux.engine.artifacts.fetch import Fetcher, free_bytes
from flux.engine.artifacts.upload import Upload
from flux.engine.artifacts.verify import verify
from flux.failpoints import run
from flux.ports.artifacts import ObjectStore, Progress
from flux.ports.files import Files
from flux.trees.layers.store import LayerStore

_WORKERS = 3
_COPY_BYTES = 8


def _new_copy() -> str:
    return secrets.token_hex(_COPY_BYTES)


class ArtifactMover:
    """Keeps artifacts locally, and moves them to and from the object store.

    Args:
        layers: what this machine has.
        files: the mutating file calls.
        store: the object store; ``None`` if artifacts stay on their node.
        node_store_id: tells which node this is.
        workers: packs moved at a time, each of at most 16 MiB and held in memory up to three times; 0: one by one in
            the caller's thread.
        new_copy: makes names for objects that are never made again, by anybody.
        room: tells how many bytes are free at a path.
    """

    def __init__(
        self,
        layers: LayerStore,
        files: Files,
        store: ObjectStore | None,
        node_store_id: Callable[[], str],
        *,
        workers: int = _WORKERS,
        new_copy: Callable[[], str] = _new_copy,
        room: Callable[[str], int] = free_bytes,
    ) -> None:
        self._layers = layers
        self._store = store
        self._node = node_store_id
        self._workers = workers
        self._new_copy = new_copy
        self._fetcher = Fetcher(layers, files, store, workers, room)

    def upload(self, reference: ArtifactReference, tell: Callable[[Progress], None] = lambda _: None) -> int:
        if self._store is None:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot upload artifact {reference.id}: there is no object store: set [objects] url and start again",
            )
        job = Upload(self._layers, self._store, self._node(), self._new_copy, self._workers, tell)
        return run(job.steps(reference))

    def fetch(self, reference: ArtifactReference) -> None:
        self._fetcher.fetch(reference)

    def has(self, artifact_id: str) -> bool:
        return self._layers.has_artifact(artifact_id)

    def verify(self, reference: ArtifactReference) -> None:
        verify(self._layers, reference)

    def keep_only(self, artifact_ids: Iterable[str]) -> int:
        return local.keep_only(self._layers, artifact_ids)
