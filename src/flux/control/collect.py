"""Collection of the object store: the control plane's alone, in two phases (spec: generations, §6; I7).

What nothing refers to gets a tombstone. A later run, after the grace, reads the intents and the living artifacts again
and deletes what is still referred to by nothing: manifests first, packs last, each tombstone after its object.

Why no upload can lose a part, whatever is interleaved (docs/adr/0010-artifact-objects.md):

- An upload writes down the keys that it is about to rely on, *then* looks for their tombstones, *then* for the objects.
- A run reads the tombstones, *then* the intents, *then* who lives, *then* manifests and layers; it deletes only what
  had its tombstone at the first of these readings. So one of the two sees the other.
- A tombstone is never taken back, and no name is used twice: any number of collectors may be late by any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from flux.core import objects
from flux.core.artifact import Artifact, damaged, digest_of
from flux.core.control import Collected
from flux.core.errors import Code, FluxError
from flux.core.objects import Intent, Tombstone
from flux.failpoints import Point, Steps
from flux.ports.artifacts import ObjectStore
from flux.ports.clock import Clock

_ID_CHARACTERS = 32


class _Packed(msgspec.Struct, frozen=True):
    packs: list[str]


class _Copy(msgspec.Struct, frozen=True):
    """What a collection reads of a ``StoredLayer``: neither entries nor blocks."""

    index: _Packed


def collect(
    store: ObjectStore, read_living: Callable[[], Collection[str]], clock: Clock, grace_seconds: float
) -> Steps[Collected]:
    """Delete what was marked long enough ago and is still not needed, then mark what is not needed now.

    Args:
        store: the object store.
        read_living: returns the ids of *every* artifact from which any generation may restore: what the registry refers
            to (current artifacts, expected ones, snapshots, wakes under way), and what any node has a row, a pin, a job
            or an in-flight restore for. It must raise if it cannot know one of these, a node that does not answer among
            them; the collection then ends and nothing is lost. An artifact that was left out once is never named again.
        clock: the wall clock, by which tombstones are dated.
        grace_seconds: how long an object keeps its tombstone before it goes; what was stored more recently is not
            marked. It saves work; no correctness rests on it.

    Raises:
        FluxError: ``unavailable``, or ``internal`` (data loss) if what a living artifact needs cannot be read: then it
            cannot be told what is needed, and nothing is deleted.
    """
    return _Collection(store, clock.wall(), grace_seconds).steps(read_living)


class _Collection:
    def __init__(self, store: ObjectStore, now: float, grace_seconds: float) -> None:
        self._store = store
        self._marked_before = now - grace_seconds
        self._now = now
        self._packs: dict[str, list[str]] = {}

    def steps(self, read_living: Callable[[], Collection[str]]) -> Steps[Collected]:
        tombs = {objects.key_of(key) for key, _, _ in self._store.list(objects.TOMBSTONES)}
        there = {key: (size, time) for part in objects.COLLECTED for key, size, time in self._store.list(part)}
        intents = self._read_intents()
        living = frozenset(read_living())
        needed = self._needed(living, intents)
        deleted, freed = yield from self._delete(_ordered(tombs - needed), there)
        marked = yield from self._mark(_ordered(there.keys() - needed - tombs), there)
        return Collected(marked=marked, deleted=deleted, bytes=freed)

    def _read_intents(self) -> list[tuple[str, Intent]]:
        found = []
        for key, _, _ in self._store.list(objects.INTENTS):
            data = self._get(key)
            if data is not None:
                found.append((key, objects.decode(data, key, Intent)))
        return found

    def _needed(self, living: frozenset[str], intents: list[tuple[str, Intent]]) -> frozenset[str]:
        """Return the keys that anything refers to. An intent counts while it is there; it lives with its artifact."""
        needed = {key for _, intent in intents for key in intent.keys}
        needed.update(key for key, intent in intents if intent.artifact_id in living)
        copies: dict[str, list[str]] = {}
        # Listed after the intents were read: an upload removes its intents when all of its copies are there.
        for key, _, _ in self._store.list(objects.LAYERS):
            copies.setdefault(key.split("/")[1], []).append(key)
        for artifact_id in sorted(living):
            needed.add(objects.artifact_key(artifact_id))
            needed.update(copy for layer_id in self._layers(artifact_id) for copy in copies.get(layer_id, ()))
        for copy in sorted(key for key in needed if key.startswith(objects.LAYERS)):
            needed.update(self._packs_of(copy))
        return frozenset(needed)

    def _layers(self, artifact_id: str) -> list[str]:
        """Return the layers of a living artifact; none if it is not in the store."""
        data = self._get(objects.artifact_key(artifact_id))
        if data is None:
            return []
        if digest_of(data)[:_ID_CHARACTERS] != artifact_id:
            raise damaged("artifact", artifact_id, "its content does not have the digest that names it")
        return objects.decode(data, objects.artifact_key(artifact_id), Artifact).layers

    def _packs_of(self, copy: str) -> list[str]:
        if copy not in self._packs:
            data = self._get(copy)
            names = [] if data is None else objects.decode(data, copy, _Copy).index.packs
            self._packs[copy] = [objects.pack_key(name) for name in names]
        return self._packs[copy]

    def _get(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except FluxError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return None

    def _delete(self, keys: Iterable[str], there: dict[str, tuple[int, float]]) -> Steps[tuple[int, int]]:
        deleted = freed = 0
        for key in keys:
            tombstone = objects.tombstone_key(key)
            data = self._get(tombstone)
            if data is None or self._is_young(data, tombstone):
                continue
            self._store.delete(key)
            yield Point.COLLECT_DELETED
            self._store.delete(tombstone)
            if key in there:
                deleted += 1
                freed += there[key][0]
        return deleted, freed

    def _is_young(self, data: bytes, tombstone: str) -> bool:
        return objects.decode(data, tombstone, Tombstone).at > self._marked_before

    def _mark(self, keys: Iterable[str], there: dict[str, tuple[int, float]]) -> Steps[int]:
        marked = 0
        data = objects.encode(Tombstone(at=self._now))
        for key in keys:
            if there[key][1] <= self._marked_before and self._store.put_new(objects.tombstone_key(key), data):
                marked += 1
                yield Point.COLLECT_MARKED
        return marked


def _ordered(keys: Iterable[str]) -> list[str]:
    """Sort keys so that what refers to something comes before it."""
    rank = {part: number for number, part in enumerate(objects.COLLECTED)}
    return sorted(keys, key=lambda key: (rank.get(key.partition("/")[0] + "/", len(rank)), key))
