"""What lies in the object store: the names of objects, and what they say (docs/adr/0010-artifact-objects.md).

==========================================  ==============================================================
``artifacts/<id>.json``                     the canonical ``Artifact``; published last
``layers/<layer id>/<sha256>-<copy>.json``  a ``StoredLayer``: the canonical ``Layer``, and where its blocks lie
``packs/<sha256>-<copy>``                   blocks, one after the other
``intents/<artifact id>/<node>/<sha256>``  an ``Intent``: keys that an upload is about to rely on
``tombstones/<key>``                        a ``Tombstone``: the object of that key is about to be deleted
==========================================  ==============================================================

``<copy>`` is random and new for every object that is sent: no name is ever used twice, so a deletion that comes late
can hit nothing that was sent since. A tombstone is never taken back.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from flux.core.artifact import PackIndex, damaged, digest_of
from flux.core.errors import Code, FluxError

ARTIFACTS = "artifacts/"
LAYERS = "layers/"
PACKS = "packs/"
INTENTS = "intents/"
TOMBSTONES = "tombstones/"
#: What is collected, in this order: what refers to something goes before it.
COLLECTED = (ARTIFACTS, LAYERS, PACKS, INTENTS)

_KEY = re.compile(r"(?!.*(?:^|/)\.)[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_SHA256 = 64

_T = TypeVar("_T")


class StoredLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a layer. ``layer``: its canonical JSON, byte for byte, whose digest is its id."""

    layer: msgspec.Raw
    index: PackIndex
    format: int = 1


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that an upload relies on from now on. Written before it looks whether they are there.

    ``new``: they are names that this upload has made, under which nobody else sends anything.
    """

    artifact_id: str
    node: str
    keys: list[str]
    new: bool = False


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """When an object was found to be referred to by nothing, in wall-clock seconds."""

    at: float


def artifact_key(artifact_id: str) -> str:
    """Return the key of an artifact's manifest."""
    return f"{ARTIFACTS}{artifact_id}.json"


def artifact_of(key: str) -> str:
    """Return the id of the artifact that a manifest's or an intent's key belongs to."""
    return key.split("/")[1].removesuffix(".json")


def layer_key(layer_id: str, digest: str, copy: str) -> str:
    """Return the key of one copy of a layer: an object whose own content has ``digest``."""
    return f"{LAYERS}{layer_id}/{digest}-{copy}.json"


def layer_digest(key: str) -> str:
    """Return the digest of the content of a copy of a layer."""
    return key.rpartition("/")[2][:_SHA256]


def pack_name(digest: str, copy: str) -> str:
    """Return the name that a ``PackIndex`` knows one copy of a pack by."""
    return f"{digest}-{copy}"


def pack_digest(name: str) -> str:
    """Return the digest of the content of a pack."""
    return name[:_SHA256]


def pack_key(name: str) -> str:
    """Return the key of a pack."""
    return PACKS + name


def intent_prefix(artifact_id: str, node: str = "") -> str:
    """Return what the keys of an artifact's intents begin with, or of those of one node."""
    return f"{INTENTS}{artifact_id}/{node}/" if node else f"{INTENTS}{artifact_id}/"


def intent_key(intent: Intent) -> str:
    """Return the key of an intent: the same keys make the same intent."""
    return intent_prefix(intent.artifact_id, intent.node) + digest_of(encode(intent))


def tombstone_key(key: str) -> str:
    """Return the key of an object's tombstone."""
    return TOMBSTONES + key


def key_of(tombstone: str) -> str:
    """Return the key of the object that a tombstone's key speaks of."""
    return tombstone.removeprefix(TOMBSTONES)


def encode(value: StoredLayer | Intent | Tombstone) -> bytes:
    """Return the canonical JSON."""
    return msgspec.json.encode(value, order="sorted")


def decode(data: bytes, key: str, kind: type[_T]) -> _T:
    """Return what an object says. Raises ``FluxError`` ``internal`` (data loss) if it cannot be read."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise damaged("object", key, "it cannot be read") from error


def check_key(key: str) -> None:
    """Raise ``FluxError`` ``invalid`` if a key is none: ASCII names that begin with no dot, separated by ``/``."""
    if not _KEY.fullmatch(key):
        raise FluxError(
            Code.INVALID, f"cannot use the key {key[:100]!r}: it is not names of letters, digits, . _ and -"
        )
