"""Where layers and artifacts are kept on this machine: ``<state>/layers/`` and ``<state>/artifacts/``.

A layer is the directory ``layers/<layer id>/`` with ``tree/`` (as an overlay takes it: real whiteouts, real extended
attributes), ``layer.json`` and ``seal.json``. It is there when ``tree`` is there: that comes last, in one rename. An
artifact is the file ``artifacts/<artifact id>.json``, written when all of its layers are there. What a crash left
unfinished has a name with a dot, or no tree, and ``clear_drafts`` removes it.

All changes go through the Files port. Errors are ``OSError``, but for saved data that is not what it was.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from flux.core.artifact import (
    Artifact,
    Layer,
    damaged,
    decode_artifact,
    decode_layer,
    digest_of,
    encode,
    missing,
)
from flux.core.node import ArtifactReference
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.area import remove_tree
from flux.trees.beneath import DIRECTORY

LAYERS = "layers"
ARTIFACTS = "artifacts"
TREE = "tree"
_LAYER = "layer.json"
_SEAL = "seal.json"
_SUFFIX = ".json"
_ID_CHARACTERS = 32
_TAIL = 64
_SIZE = re.compile(rb'"size":([0-9]+)\}\Z')
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerStore:
    """Reads, publishes and removes layers and artifacts. Safe to use from several threads.

    Args:
        state: the state directory.
        files: the mutating file calls.

    Raises:
        OSError: if the directories cannot be made or opened.
    """

    def __init__(self, state: str, files: Files) -> None:
        self._files = files
        self._state = state
        self._lock = threading.RLock()
        self._unnamed: set[str] = set()
        root = os.open(state, DIRECTORY)
        try:
            self._layers = self._part(root, LAYERS)
            self._artifacts = self._part(root, ARTIFACTS)
        finally:
            os.close(root)

    def _part(self, root: int, name: str) -> int:
        try:
            return os.open(name, DIRECTORY, dir_fd=root)
        except FileNotFoundError:
            self._files.make_directory(Point.STATE_OPEN, root, name)
            self._files.sync_file(Point.STATE_OPEN, root)
            return os.open(name, DIRECTORY, dir_fd=root)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        for descriptor in (self._layers, self._artifacts):
            if descriptor >= 0:
                os.close(descriptor)
        self._layers = self._artifacts = -1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from publishing, adopting, removing and naming layers meanwhile."""
        with self._lock:
            yield

    def draft(self) -> str:
        """Make an empty directory for a layer; the caller builds ``TREE`` in it, then publishes or discards it."""
        name = f".{secrets.token_hex(8)}.new"
        self._files.make_directory(Point.LAYER_WRITE, self._layers, name)
        return self._path(name)

    def discard(self, draft: str) -> None:
        """Remove a draft. Idempotent."""
        remove_tree(self._files, Point.LAYER_REMOVE, self._layers, os.path.basename(draft))

    def publish(self, draft: str, layer: Layer, seal: Mapping[str, str]) -> str:
        """Make a draft, whose tree is complete, the layer that ``layer`` describes; return its id.

        ``seal``: portable path → the entry's real manifest token. Everything is synced first. A layer that is there
        already stays, and the draft goes.
        """
        data = encode(layer)
        layer_id = digest_of(data)
        name = os.path.basename(draft)
        with self._lock:
            self._unnamed.add(layer_id)
            if self.has(layer_id):
                self.discard(draft)
                return layer_id
            self._describe(name, data, seal)
            self._files.sync_filesystem(Point.LAYER_WRITE, self._layers)
            self._remove(layer_id)
            self._files.rename_new(Point.LAYER_PUBLISH, self._layers, name, self._layers, layer_id)
            self._files.sync_file(Point.LAYER_PUBLISH, self._layers)
        return layer_id

    def adopt(self, layer: Layer, seal: Mapping[str, str], directory: int, name: str) -> str:
        """Make the tree ``name`` in an open ``directory`` the layer's, by a rename; its contents are synced already.

        Nothing happens to the tree where the layer is there already. ``give_back`` undoes it.
        """
        data = encode(layer)
        layer_id = digest_of(data)
        with self._lock:
            self._unnamed.add(layer_id)
            if self.has(layer_id):
                return layer_id
            self._remove(layer_id)
            self._files.make_directory(Point.LAYER_WRITE, self._layers, layer_id)
            held = self._describe(layer_id, data, seal, sync=True)
            try:
                self._files.sync_file(Point.LAYER_WRITE, self._layers)
                self._files.rename_new(Point.LAYER_PUBLISH, directory, name, held, TREE)
                self._files.sync_file(Point.LAYER_PUBLISH, held)
                self._files.sync_file(Point.LAYER_PUBLISH, directory)
            finally:
                os.close(held)
        return layer_id

    def give_back(self, layer_id: str, directory: int, name: str) -> bool:
        """Undo ``adopt``: the tree is again ``name`` in ``directory``; ``False`` if there is no such layer."""
        with self._lock:
            try:
                held = os.open(layer_id, DIRECTORY, dir_fd=self._layers)
            except FileNotFoundError:
                return False
            try:
                self._files.rename_new(Point.LAYER_PUBLISH, held, TREE, directory, name)
                self._files.sync_file(Point.LAYER_PUBLISH, directory)
            except FileNotFoundError:
                return False
            finally:
                os.close(held)
            self._unnamed.discard(layer_id)
            self._remove(layer_id)
        return True

    def _describe(self, name: str, data: bytes, seal: Mapping[str, str], *, sync: bool = False) -> int:
        """Write what belongs beside a tree; with ``sync`` the directory is returned open and synced, else -1."""
        held = os.open(name, DIRECTORY, dir_fd=self._layers)
        try:
            for file, content in ((_LAYER, data), (_SEAL, msgspec.json.encode(seal))):
                self._write(held, file, content, sync=sync)
            if not sync:
                return -1
            self._files.sync_file(Point.LAYER_WRITE, held)
            held, result = -1, held
            return result
        finally:
            if held >= 0:
                os.close(held)

    def _write(self, directory: int, name: str, data: bytes, *, sync: bool) -> None:
        descriptor = self._files.create(Point.LAYER_WRITE, directory, name)
        try:
            self._files.write(Point.LAYER_WRITE, descriptor, data)
            if sync:
                self._files.sync_file(Point.LAYER_WRITE, descriptor)
        finally:
            os.close(descriptor)

    def _replace(self, directory: int, name: str, data: bytes) -> None:
        """Write a file anew: durable, then visible."""
        draft = f".{secrets.token_hex(8)}.new"
        try:
            self._write(directory, draft, data, sync=True)
            self._files.rename(Point.LAYER_PUBLISH, directory, draft, directory, name)
        except BaseException:
            remove_tree(self._files, Point.LAYER_REMOVE, directory, draft)
            raise
        self._files.sync_file(Point.LAYER_PUBLISH, directory)

    def has(self, layer_id: str) -> bool:
        """Tell whether a layer is there."""
        return os.path.lexists(self.tree(layer_id))

    def unnamed(self) -> frozenset[str]:
        """Return the layers that were published since the start for artifacts which are not written yet."""
        with self._lock:
            return frozenset(self._unnamed)

    def release(self, layer_ids: Iterable[str]) -> None:
        """Say that the artifact for which layers were published will not be written: nothing holds them any more."""
        with self._lock:
            self._unnamed.difference_update(layer_ids)

    def layers(self) -> list[str]:
        """Return the ids of all layers, sorted."""
        return sorted(name for name in _names(self._layers) if not name.startswith(".") and self.has(name))

    def tree(self, layer_id: str) -> str:
        """Return the path of a layer's tree, to be mounted or read, never written."""
        return f"{self._path(layer_id)}/{TREE}"

    def read(self, layer_id: str) -> Layer:
        """Return a layer's description. Raises ``FluxError`` ``not_found``; ``internal`` (data loss) if it changed."""
        return decode_layer(self.raw(layer_id), layer_id)

    def raw(self, layer_id: str) -> bytes:
        """Return a layer's description as it is on disk, unchecked. Raises ``FluxError`` ``not_found``."""
        data = self._read(layer_id, _LAYER) if self.has(layer_id) else None
        if data is None:
            raise missing("layer", layer_id)
        return data

    def size(self, layer_id: str) -> int:
        """Return how many bytes a layer's contents have, as its description says in its last words."""
        try:
            descriptor = os.open(f"{layer_id}/{_LAYER}", _READ, dir_fd=self._layers)
        except FileNotFoundError as error:
            raise missing("layer", layer_id) from error
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(os.fstat(descriptor).st_size - _TAIL, 0))
            found = _SIZE.search(file.read())
        if found is None:
            raise damaged("layer", layer_id, "its description does not end as one does")
        return int(found[1])

    def stamp(self, layer_id: str) -> tuple[int, ...]:
        """Return what changes whenever a layer's description is written: a look at its status."""
        try:
            status = os.stat(f"{layer_id}/{_LAYER}", dir_fd=self._layers, follow_symlinks=False)
        except OSError as error:
            raise missing("layer", layer_id) from error
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def seal(self, layer_id: str) -> dict[str, str]:
        """Return the layer's seal: portable path → real manifest token; empty if it is gone or cannot be read."""
        data = self._read(layer_id, _SEAL)
        try:
            return {} if data is None else msgspec.json.decode(data, type=dict[str, str])
        except msgspec.MsgspecError:
            return {}

    def write_seal(self, layer_id: str, seal: Mapping[str, str]) -> None:
        """Replace a layer's seal, after its contents were found to be right."""
        try:
            held = os.open(layer_id, DIRECTORY, dir_fd=self._layers)
        except FileNotFoundError as error:
            raise missing("layer", layer_id) from error
        try:
            self._replace(held, _SEAL, msgspec.json.encode(seal))
        finally:
            os.close(held)

    def remove_layer(self, layer_id: str) -> None:
        """Remove a layer that no artifact here needs. It is gone at once, whatever becomes of the removal."""
        with self._lock:
            self._remove(layer_id)

    def _remove(self, layer_id: str) -> None:
        dead = f".{secrets.token_hex(8)}.old"
        try:
            self._files.rename_new(Point.LAYER_REMOVE, self._layers, layer_id, self._layers, dead)
        except FileNotFoundError:
            return
        remove_tree(self._files, Point.LAYER_REMOVE, self._layers, dead)

    def write_artifact(self, artifact: Artifact) -> ArtifactReference:
        """Keep an artifact, all of whose layers are there. Idempotent.

        Raises:
            FluxError: ``not_found`` if one of the layers is not there.
        """
        data = encode(artifact)
        digest = digest_of(data)
        reference = ArtifactReference(id=digest[:_ID_CHARACTERS], digest=digest)
        with self._lock:
            for layer_id in artifact.layers:
                if not self.has(layer_id):
                    raise missing("layer", layer_id)
            self._replace(self._artifacts, reference.id + _SUFFIX, data)
            self._unnamed.difference_update(artifact.layers)
        return reference

    def has_artifact(self, artifact_id: str) -> bool:
        """Tell whether an artifact's manifest is there."""
        try:
            os.stat(artifact_id + _SUFFIX, dir_fd=self._artifacts, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read_artifact(self, artifact_id: str, digest: str | None = None) -> Artifact:
        """Return an artifact whose content has the digest that names it.

        Raises:
            FluxError: ``not_found``; ``internal`` (data loss) if it is not what was written.
        """
        data = self._content(self._artifacts, artifact_id + _SUFFIX)
        if data is None:
            raise missing("artifact", artifact_id)
        found = digest_of(data)
        if found[:_ID_CHARACTERS] != artifact_id or digest not in (None, found):
            raise damaged("artifact", artifact_id, "its content does not have the digest that names it")
        return decode_artifact(data, found)

    def artifacts(self) -> list[str]:
        """Return the ids of all artifacts here, sorted."""
        names = _names(self._artifacts)
        return sorted(name.removesuffix(_SUFFIX) for name in names if not name.startswith("."))

    def remove_artifact(self, artifact_id: str) -> None:
        """Remove an artifact's manifest; its layers stay. Idempotent."""
        try:
            self._files.unlink(Point.LAYER_REMOVE, self._artifacts, artifact_id + _SUFFIX)
        except FileNotFoundError:
            return
        self._files.sync_file(Point.LAYER_REMOVE, self._artifacts)

    def clear_drafts(self) -> None:
        """Remove what was never finished, or only half removed. Call it before anything is drafted."""
        for directory in (self._layers, self._artifacts):
            for name in _names(directory):
                if name.startswith(".") or (directory == self._layers and not self.has(name)):
                    remove_tree(self._files, Point.LAYER_REMOVE, directory, name)

    def _path(self, name: str) -> str:
        return f"{self._state}/{LAYERS}/{name}"

    def _read(self, layer_id: str, name: str) -> bytes | None:
        return self._content(self._layers, f"{layer_id}/{name}")

    def _content(self, directory: int, name: str) -> bytes | None:
        try:
            descriptor = os.open(name, _READ, dir_fd=directory)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read()


def _names(directory: int) -> list[str]:
    """Return the names in an open directory that several threads list.

    By a descriptor of its own: where a listing is, is kept with what is open, and two that share it hide names from
    each other as soon as there are more of them than one call returns.
    """
    own = os.open(".", DIRECTORY, dir_fd=directory)
    try:
        return os.listdir(own)
    finally:
        os.close(own)
