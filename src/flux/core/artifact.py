"""Artifacts: immutable, content-addressed descriptions of a sandbox's saved tree (spec: generations, §6).

An artifact is a stack of layers over a template. A layer holds what one or several executions changed, in the form of
an overlay's writable layer: changed entries, whiteouts for what is gone, opaque and redirected directories. Layers and
artifacts are named by the digest of their own canonical JSON, which names every content by digest: who has checked the
name has checked everything below it.

Contents are cut into blocks of ``BLOCK`` bytes; equal blocks are stored once. For transport, blocks lie one after the
other in *packs*, objects named by their digest.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

import msgspec

from flux.core.errors import Code, FluxError

_T = TypeVar("_T")

#: Bytes of a block; the last block of a file is shorter.
BLOCK = 64 * 1024
#: A pack is closed when it has reached this many bytes.
PACK = 16 * 1024 * 1024


class BlockPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a block lies: in the ``pack`` (an index into the layer's ``packs``) at ``offset``, ``length`` bytes."""

    pack: int
    offset: int
    length: int


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer.

    ``entries``: portable path in the layer → ``core.manifest`` token, in which ctime is 0 and the inode numbers the
    group of hard links that the entry belongs to (0: it has no other name in the layer). ``contents``: portable path
    of a regular file → digests (hex SHA-256) of its blocks, in order; an empty file has none; of linked files only the
    first in order of paths is listed. A block of zeros is written back as a hole. ``size``: bytes of all contents.
    """

    entries: dict[str, str]
    contents: dict[str, list[str]]
    size: int
    format: Literal[1] = 1


class PackIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Which packs hold a layer's blocks. Not part of its name: the same layer may be packed in several ways."""

    layer_id: str
    packs: list[str]
    blocks: dict[str, BlockPlace]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact: the manifest that is published last. ``layers``: ids, nearest first.

    ``bound``: of a sandbox on a user's own directory, of which nothing is saved and which cannot leave its node.
    ``template``: what the layers lie over, as the sandbox's record names it. ``size``: bytes of all contents.
    """

    sandbox_id: str
    generation: int
    kind: Literal["suspend", "snapshot"]
    substrate: str
    layers: list[str]
    created_at: float
    size: int = 0
    parent: str | None = None
    template: str | None = None
    built_in: bool = False
    bound: bool = False
    format: Literal[1] = 1


def encode(value: Artifact | Layer) -> bytes:
    """Return the canonical JSON: keys sorted, no space. Lossless for names that are not Unicode (they are portable)."""
    return msgspec.json.encode(value, order="sorted")


def digest_of(data: bytes) -> str:
    """Return the hex SHA-256, by which everything here is named."""
    return hashlib.sha256(data).hexdigest()


def decode_artifact(data: bytes, digest: str) -> Artifact:
    """Return the artifact that ``data`` is. Raises ``FluxError`` ``internal`` (data loss) if it is not ``digest``."""
    return _decode(data, digest, "artifact", Artifact)


def decode_layer(data: bytes, layer_id: str) -> Layer:
    """Return the layer that ``data`` is. Raises ``FluxError`` ``internal`` (data loss) if it is not ``layer_id``."""
    return _decode(data, layer_id, "layer", Layer)


def damaged(what: str, name: str, why: str) -> FluxError:
    """Return the error for saved data that is not what it was: it is never used."""
    return FluxError(
        Code.INTERNAL,
        f"cannot use the {what} {name[:16]}: {why}; nothing was started from it and what is saved was left as it is: "
        "bring the object back from a copy, or delete the sandbox",
        {"reason": "DataLoss", "grpc_status": "DATA_LOSS", what: name},
    )


def missing(what: str, name: str) -> FluxError:
    """Return the error for saved data that is not there."""
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find the {what} {name[:16]}: neither this node nor the object store has it",
        {"reason": "ArtifactMissing", "grpc_status": "NOT_FOUND", what: name},
    )


def _decode(data: bytes, digest: str, what: str, kind: type[_T]) -> _T:
    if digest_of(data) != digest:
        raise damaged(what, digest, "its content does not have the digest that names it")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise damaged(what, digest, "it cannot be read") from error
