"""Bringing an artifact to the object store (spec: generations, §6; docs/adr/0010-artifact-objects.md).

The order is what makes it safe. First an *intent* names the keys that this upload will rely on; then it looks which of
them have a tombstone, then which are there. New packs and layers have names that nobody ever used, named by an intent
before they are sent. The manifest is sent when everything else was confirmed; then the intents go. So a manifest in the
store means that all of the artifact is there, and a collection sees the intent, or the upload sees the tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from flux.core import objects
from flux.core.artifact import Artifact, Layer, PackIndex, damaged, digest_of, encode
from flux.core.blocks import Block, blocks
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.core.objects import Intent, StoredLayer
from flux.engine.artifacts import packs, remote
from flux.engine.artifacts.local import Contents
from flux.engine.artifacts.packs import Pack, Place, in_parallel
from flux.engine.artifacts.remote import Copy
from flux.failpoints import Point, Steps
from flux.ports.artifacts import ObjectStore, Progress
from flux.trees.layers.store import LayerStore


class Upload:
    """One run of an upload; a run after a crash is a new one, and uses what the earlier ones sent.

    Args:
        layers: what this machine has.
        store: the object store.
        node: this node's store id, which its intents bear.
        new_copy: makes names that are never used again.
        workers: how many packs are sent at a time; each is in memory.
        tell: is told how far it has come.
    """

    def __init__(
        self,
        layers: LayerStore,
        store: ObjectStore,
        node: str,
        new_copy: Callable[[], str],
        workers: int,
        tell: Callable[[Progress], None],
    ) -> None:
        self._layers = layers
        self._store = store
        self._node = node
        self._new_copy = new_copy
        self._workers = workers
        self._tell = tell
        self._id = ""
        self._sent = 0
        self._total = 0
        self._known: dict[str, Place] = {}  # digest of a block → where the store has it
        self._earlier: dict[str, str] = {}  # what an earlier run declared: key without its copy → key

    def steps(self, reference: ArtifactReference) -> Steps[int]:
        """Upload; return the bytes sent. What stands above a point has happened, and is durable."""
        artifact = self._layers.read_artifact(reference.id, reference.digest)
        if artifact.bound:
            raise _bound(reference.id)
        self._id = reference.id
        manifest = encode(artifact)
        if not self._is_published(manifest):
            described = {layer_id: self._layers.read(layer_id) for layer_id in artifact.layers}
            copies = self._find_copies(artifact)
            earlier = self._earlier_keys()
            self._declare(_relied_on(self._id, copies, earlier))
            yield Point.UPLOAD_INTENT
            complete = self._examine(copies, earlier)
            yield from self._send_layers(artifact, described, complete)
            self._send_manifest(manifest)
            yield Point.UPLOAD_MANIFEST
        self._withdraw()
        yield Point.UPLOAD_CONFIRMED
        self._tell(Progress(sent=self._sent, total=self._sent))
        return self._sent

    def _is_published(self, manifest: bytes) -> bool:
        found = remote.read_object(self._store, objects.artifact_key(self._id))
        if found is not None and found != manifest:
            raise damaged("artifact", self._id, "the object store has another content under its name")
        return found is not None

    def _find_copies(self, artifact: Artifact) -> list[Copy]:
        """Return the copies of the artifact's layers, and of its parent's: their blocks need not be sent again."""
        wanted = list(artifact.layers)
        if artifact.parent is not None:
            wanted += [layer_id for layer_id in self._parent_layers(artifact.parent) if layer_id not in wanted]
        keys = [key for layer_id in wanted for key in remote.copy_keys(self._store, layer_id)]
        return [copy for copy in in_parallel(self._copy, keys, self._workers) if copy is not None]

    def _parent_layers(self, artifact_id: str) -> list[str]:
        try:
            return self._layers.read_artifact(artifact_id).layers
        except FluxError:  # it is only a source of blocks
            return []

    def _copy(self, key: str) -> Copy | None:
        """Return a copy; ``None`` if it has gone or is damaged: another one is then sent."""
        try:
            return remote.read_copy(self._store, key)
        except FluxError as error:
            if error.details.get("reason") in ("ArtifactMissing", "DataLoss"):
                return None
            raise

    def _earlier_keys(self) -> list[str]:
        """Return the names that earlier runs of this upload have made; they may have sent some of them."""
        prefix = objects.intent_prefix(self._id, self._node)
        found = []
        for key, _, _ in self._store.list(prefix):
            data = remote.read_object(self._store, key)
            if data is not None:
                intent = objects.decode(data, key, Intent)
                found += intent.keys if intent.new else []
        return sorted(set(found))

    def _declare(self, keys: Iterable[str], *, new: bool = False) -> None:
        intent = Intent(artifact_id=self._id, node=self._node, keys=sorted(set(keys)), new=new)
        data = objects.encode(intent)
        if self._store.put_new(objects.intent_key(intent), data):
            self._sent += len(data)

    def _examine(self, copies: list[Copy], earlier: list[str]) -> set[str]:
        """Find what of the declared can be relied on: no tombstone, and there. Return the layers that are complete."""
        tombs = {objects.key_of(key) for key, _, _ in self._store.list(objects.TOMBSTONES)}
        sizes: dict[str, int] = {}
        for copy in copies:
            for name, size in copy.pack_sizes().items():
                sizes[name] = max(sizes.get(name, 0), size)
        looked = [name for name in sorted(sizes) if objects.pack_key(name) not in tombs]
        found = zip(looked, in_parallel(self._size, map(objects.pack_key, looked), self._workers), strict=True)
        good = {name for name, size in found if size is not None and size >= max(sizes[name], 1)}
        complete = set()
        for copy in copies:
            if copy.key not in tombs and good.issuperset(copy.index.packs) and self._is_whole(copy):
                complete.add(copy.index.layer_id)
            self._known.update(packs.places(copy.index, good))
        self._earlier = {_without_copy(key): key for key in earlier if key not in tombs}
        return complete

    def _size(self, key: str) -> int | None:
        return self._store.head(key)

    def _is_whole(self, copy: Copy) -> bool:
        """Tell whether a copy is still there, and says of every block where it lies."""
        wanted = {block.digest for block in blocks(copy.layer, copy.index.layer_id)}
        return wanted <= copy.index.blocks.keys() and self._store.head(copy.key) is not None

    def _send_layers(self, artifact: Artifact, described: dict[str, Layer], complete: set[str]) -> Steps[None]:
        missing = [layer_id for layer_id in reversed(artifact.layers) if layer_id not in complete]
        wanted = {layer_id: list(blocks(described[layer_id], layer_id)) for layer_id in missing}
        new = {block.digest: block.length for found in wanted.values() for block in found}
        self._total = self._sent + sum(length for digest, length in new.items() if digest not in self._known)
        for layer_id in missing:
            yield from self._send_packs(layer_id, wanted[layer_id])
            index = packs.index(layer_id, wanted[layer_id], self._known)
            self._send_layer(layer_id, described[layer_id], index)
            yield Point.UPLOAD_PART

    def _send_packs(self, layer_id: str, wanted: list[Block]) -> Steps[None]:
        new = [block for block in wanted if block.digest not in self._known]
        with Contents(self._layers, layer_id) as contents:
            for name, pack in in_parallel(self._send_pack, packs.fill(new, contents.read), self._workers):
                for digest, (offset, length) in pack.blocks.items():
                    self._known[digest] = Place(name, offset, length)
                self._count(len(pack.data))
                yield Point.UPLOAD_PART

    def _send_pack(self, pack: Pack) -> tuple[str, Pack]:
        key = self._name(objects.pack_key(objects.pack_name(pack.digest, self._new_copy())))
        sent = self._put(key, pack.data)
        return key.removeprefix(objects.PACKS), pack if sent else msgspec.structs.replace(pack, data=b"")

    def _send_layer(self, layer_id: str, layer: Layer, index: PackIndex) -> None:
        data = objects.encode(StoredLayer(layer=msgspec.Raw(encode(layer)), index=index))
        if self._put(self._name(objects.layer_key(layer_id, digest_of(data), self._new_copy())), data):
            self._count(len(data))

    def _name(self, key: str) -> str:
        """Return the key to send something under: that of an earlier run for the same content, else the new one."""
        earlier = self._earlier.get(_without_copy(key))
        if earlier is None:
            self._declare([key], new=True)
        return earlier or key

    def _put(self, key: str, data: bytes) -> bool:
        """Create an object and make sure that it is there as it was sent: the store checked its digest (§6).

        ``False`` if it was there already, and nothing was sent.
        """
        if self._store.head(key) == len(data):
            return False
        self._store.put_new(key, data)
        size = self._store.head(key)
        if size != len(data):
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot confirm {key}: {len(data)} bytes were sent and the object store has {size}: it is tried "
                "again; if that goes on, see whether the store loses what it acknowledges",
                {"key": key},
            )
        return True

    def _count(self, size: int) -> None:
        self._sent += size
        self._total = max(self._total, self._sent)
        self._tell(Progress(sent=self._sent, total=self._total))

    def _send_manifest(self, manifest: bytes) -> None:
        if self._store.put_new(objects.artifact_key(self._id), manifest):
            self._count(len(manifest))
        if not self._is_published(manifest):
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot confirm artifact {self._id}: the object store acknowledged its manifest and does not have it: "
                "it is tried again",
            )

    def _withdraw(self) -> None:
        """Remove this node's intents: the manifest protects the parts now."""
        for key, _, _ in self._store.list(objects.intent_prefix(self._id, self._node)):
            self._store.delete(key)


def _relied_on(artifact_id: str, copies: list[Copy], earlier: list[str]) -> Iterator[str]:
    yield objects.artifact_key(artifact_id)
    for copy in copies:
        yield copy.key
        yield from map(objects.pack_key, copy.index.packs)
    yield from earlier


def _without_copy(key: str) -> str:
    """Return a key up to its copy: what says which content it has."""
    return key.rpartition("-")[0]


def _bound(artifact_id: str) -> FluxError:
    return FluxError(
        Code.NOT_APPLICABLE,
        f"cannot upload artifact {artifact_id}: its sandbox is a directory of its own, which never leaves its node",
    )
