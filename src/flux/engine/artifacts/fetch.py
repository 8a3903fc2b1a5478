"""Making an artifact present on this machine, every digest checked (spec: generations, §5 step 3; I6).

Nothing of it is visible before it is complete: a layer is built in a draft and published by a rename; the manifest
comes when all of its layers are there. What fails leaves the object store, and what was here before, as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flux.core import paths
from flux.core.artifact import Artifact, Layer, missing
from flux.core.blocks import blocks
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.engine.artifacts import packs, remote
from flux.engine.artifacts.remote import Copy
from flux.ports.artifacts import ObjectStore
from flux.ports.files import Files
from flux.trees.beneath import DIRECTORY
from flux.trees.layers.build import build
from flux.trees.layers.describe import look, normal, prefix_of, seal_of
from flux.trees.layers.store import TREE, LayerStore
from flux.trees.privilege import is_privileged

#: What an entry needs on disk besides its content, and what is left free in any case. Bytes.
_ENTRY = 4096
_RESERVE = 16 * 1024 * 1024
_ATTEMPTS = 3
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EPERM, errno.EACCES, errno.EROFS})


def free_bytes(path: str) -> int:
    """Return the bytes that an ordinary user can still write to the file system of ``path``."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class Fetcher:
    """Fetches artifacts; several threads may, and of two that want the same layer one waits for the other.

    Args:
        layers: what this machine has.
        files: the mutating file calls.
        store: the object store, ``None`` if there is none.
        workers: how many packs are got at a time.
        room: tells how many bytes are free at a path.
    """

    def __init__(
        self,
        layers: LayerStore,
        files: Files,
        store: ObjectStore | None,
        workers: int,
        room: Callable[[str], int] = free_bytes,
    ) -> None:
        self._layers = layers
        self._files = files
        self._store = store
        self._workers = workers
        self._room = room
        self._busy: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def fetch(self, reference: ArtifactReference) -> None:
        """Make an artifact present; see ``ports.artifacts.Artifacts.fetch``."""
        with _wrapped(reference.id):
            if self._layers.has_artifact(reference.id):
                self._layers.read_artifact(reference.id, reference.digest)
                return
            if self._store is None:
                raise missing("artifact", reference.id)
            artifact = remote.read_manifest(self._store, reference)
            try:
                for _ in range(_ATTEMPTS):
                    self._fetch_layers(self._store, artifact)
                    if self._name(artifact):
                        return
                self._layers.write_artifact(artifact)
            finally:
                self._layers.release(artifact.layers)

    def _name(self, artifact: Artifact) -> bool:
        """Write the manifest; ``False`` if a layer that was here was removed with the last artifact that needed it."""
        try:
            self._layers.write_artifact(artifact)
        except FluxError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return False
        return True

    def _fetch_layers(self, store: ObjectStore, artifact: Artifact) -> None:
        wanted = [layer_id for layer_id in reversed(artifact.layers) if not self._layers.has(layer_id)]
        copies = {layer_id: self._copies(store, layer_id) for layer_id in wanted}
        self._admit([found[0] for found in copies.values()])
        for layer_id, found in copies.items():
            with self._alone(layer_id):
                if not self._layers.has(layer_id):
                    self._fetch_layer(store, found)

    def _copies(self, store: ObjectStore, layer_id: str) -> list[Copy]:
        """Return the sound copies of a layer: at least one. Raises what is wrong with the others, or ``not_found``."""
        found = []
        problem = missing("layer", layer_id)
        for key in remote.copy_keys(store, layer_id):
            try:
                found.append(remote.read_copy(store, key))
            except FluxError as error:
                problem = _worse(problem, error)
        if not found:
            raise problem
        return found

    def _admit(self, wanted: list[Copy]) -> None:
        """Make sure that there is room before anything is written. Raises ``exhausted``."""
        if not wanted:
            return
        needed = _RESERVE + sum(_disk_bytes(copy) for copy in wanted)
        place = os.path.dirname(os.path.dirname(self._layers.tree(wanted[0].index.layer_id)))
        free = self._room(place)
        if needed > free:
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot fetch the artifact: it needs {needed} bytes in {place} and {free} are free: make room, or "
                "start it on another node",
                {"needed_bytes": needed, "free_bytes": free},
            )

    def _fetch_layer(self, store: ObjectStore, copies: list[Copy]) -> None:
        """Build and publish a layer from the first copy that is whole."""
        problem: FluxError | None = None
        for copy in copies:
            try:
                self._build(store, copy)
            except FluxError as error:
                if error.details.get("reason") not in ("ArtifactMissing", "DataLoss"):
                    raise
                problem = error if problem is None else _worse(problem, error)
            else:
                return
        assert problem is not None, "there is at least one copy"
        raise problem

    def _build(self, store: ObjectStore, copy: Copy) -> None:
        layer_id = copy.index.layer_id
        wanted = list(blocks(copy.layer, layer_id))
        draft = self._layers.draft()
        try:
            source = packs.read_blocks(store, copy.index, wanted, self._workers)
            with contextlib.closing(source):
                build(self._files, draft, copy.layer, layer_id, source)
            self._layers.publish(draft, copy.layer, _sealed(draft, layer_id, copy.layer))
        except BaseException:
            with contextlib.suppress(OSError):  # what stays has a name that the next start removes
                self._layers.discard(draft)
            raise

    @contextmanager
    def _alone(self, layer_id: str) -> Iterator[None]:
        with self._guard:
            lock = self._busy.setdefault(layer_id, threading.Lock())
        with lock:
            yield
        with self._guard:
            if not lock.locked():
                self._busy.pop(layer_id, None)


def _disk_bytes(copy: Copy) -> int:
    contents = sum(block.length for block in blocks(copy.layer, copy.index.layer_id))
    return contents + _ENTRY * len(copy.layer.entries)


def _sealed(draft: str, layer_id: str, layer: Layer) -> dict[str, str]:
    """Return the seal of a tree that was built, if it is exactly what the layer describes."""
    tree = os.open(f"{draft}/{TREE}", DIRECTORY)
    try:
        found = look(tree)
    finally:
        os.close(tree)
    entries = {
        paths.portable(path): token for path, token in normal(found, prefix_of(privileged=is_privileged())).items()
    }
    wrong = [
        path for path in sorted(entries.keys() | layer.entries.keys()) if entries.get(path) != layer.entries.get(path)
    ]
    if wrong:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot restore the layer {layer_id[:16]}: {wrong[0][:120]} is not kept by the file system here as it was "
            "captured: put the state directory on a file system that knows owners, ACLs and extended attributes",
            {"path": wrong[0], "layer": layer_id},
        )
    return seal_of(found)


def _worse(one: FluxError, other: FluxError) -> FluxError:
    """Return the error to show of two: damage before absence."""
    return other if one.details.get("reason") == "ArtifactMissing" else one


@contextmanager
def _wrapped(artifact_id: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = Code.EXHAUSTED if error.errno in _FULL else Code.UNAVAILABLE
        code = Code.DENIED if error.errno in _DENIED else code
        raise FluxError(
            code,
            f"cannot fetch artifact {artifact_id}: {error.strerror or error}: make room, or see the disk; nothing of "
            "it was kept, and it can be asked again",
            {"errno": error.errno},
        ) from error
