"""The blocks of a layer: which there are, how long each is, and which are holes (spec: generations, §6)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from flux.core import paths
from flux.core.artifact import BLOCK, Layer, damaged, digest_of

_SIZE = 4  # of a token: the file's bytes


class Block(msgspec.Struct, frozen=True):
    """A block of a file's content. ``path`` in the layer, in the lossless form; ``offset`` and ``length`` in bytes."""

    path: str
    offset: int
    length: int
    digest: str


def blocks(layer: Layer, layer_id: str) -> Iterator[Block]:
    """Yield all blocks that are not holes, in order of portable paths and offsets.

    Raises:
        FluxError: ``internal`` (data loss) if a content is not as long as its entry says.
    """
    for portable in sorted(layer.contents):
        digests = layer.contents[portable]
        size = size_of(layer.entries.get(portable, ""))
        if size is None or len(digests) != -(-size // BLOCK):
            raise damaged("layer", layer_id, f"the content of {portable[:80]!r} is not as long as its entry says")
        path = paths.from_portable(portable)
        for number, digest in enumerate(digests):
            length = min(BLOCK, size - number * BLOCK)
            if digest != zeros(length):
                yield Block(path, number * BLOCK, length, digest)


def size_of(token: str) -> int | None:
    """Return the size in bytes that a regular file's token says, ``None`` if it is no such token."""
    fields = token.split(" ", _SIZE + 1)
    return int(fields[_SIZE]) if fields[0] == "f" and len(fields) > _SIZE and fields[_SIZE].isdigit() else None


@cache
def zeros(length: int) -> str:
    """Return the digest of a block that is a hole: ``length`` zeros, which no pack holds."""
    return digest_of(bytes(length))
