"""Packs: putting blocks one after the other, and getting them back, each checked (spec: generations, §6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import msgspec

from flux.core import objects
from flux.core.artifact import PACK, BlockPlace, PackIndex, damaged, digest_of, missing
from flux.core.blocks import Block
from flux.core.errors import Code, FluxError
from flux.ports.artifacts import ObjectStore

#: Blocks that are wanted of a pack are read in one request if no more than this lies between them. Bytes.
_GAP = 256 * 1024
#: A pack is read as a whole if at least one in so many of its bytes is wanted.
_WHOLE = 2

T = TypeVar("T")
S = TypeVar("S")


class Place(msgspec.Struct, frozen=True):
    """Where a block lies in the object store: the pack's name, offset and length in bytes."""

    pack: str
    offset: int
    length: int


class Pack(msgspec.Struct, frozen=True):
    """A pack to be sent: its content, and where in it each block lies."""

    data: bytes
    blocks: dict[str, tuple[int, int]]

    @property
    def digest(self) -> str:
        """The digest that names it."""
        return digest_of(self.data)


def fill(wanted: Iterable[Block], read: Callable[[Block], bytes]) -> Iterator[Pack]:
    """Yield packs with the content of every block, each digest once, in the order given: same blocks, same packs.

    At most one pack is in memory besides what the caller keeps.
    """
    data = bytearray()
    found: dict[str, tuple[int, int]] = {}
    done: set[str] = set()
    for block in wanted:
        if block.digest in done:
            continue
        done.add(block.digest)
        found[block.digest] = (len(data), block.length)
        data += read(block)
        if len(data) >= PACK:
            yield Pack(bytes(data), found)
            data, found = bytearray(), {}
    if data:
        yield Pack(bytes(data), found)


def index(layer_id: str, wanted: Collection[Block], known: dict[str, Place]) -> PackIndex:
    """Return where all blocks of a layer lie."""
    packs: dict[str, int] = {}
    found: dict[str, BlockPlace] = {}
    for block in wanted:
        place = known[block.digest]
        found[block.digest] = BlockPlace(packs.setdefault(place.pack, len(packs)), place.offset, place.length)
    return PackIndex(layer_id=layer_id, packs=list(packs), blocks=found)


def places(index: PackIndex, names: Collection[str]) -> dict[str, Place]:
    """Return where blocks lie, of those that lie in the packs ``names``."""
    found = ((digest, index.packs[at.pack], at) for digest, at in index.blocks.items())
    return {digest: Place(name, at.offset, at.length) for digest, name, at in found if name in names}


def read_blocks(
    store: ObjectStore, index: PackIndex, wanted: Collection[Block], workers: int
) -> Generator[tuple[str, bytes], None, None]:
    """Yield every wanted block once, with its content, which has its digest; pack by pack, a few ahead.

    Args:
        store: the object store.
        index: where the blocks lie.
        wanted: blocks of the layer.
        workers: how many packs are got at a time; each is at most 16 MiB, and held twice while it is taken apart.

    Raises:
        FluxError: ``not_found`` (a pack or a place is missing), ``internal`` (data loss), ``unavailable``.
    """
    lengths = {block.digest: block.length for block in wanted}
    by_pack: dict[str, dict[str, BlockPlace]] = {}
    for digest, length in lengths.items():
        place = index.blocks.get(digest)
        if place is None or place.length != length:
            raise missing("block", digest)
        by_pack.setdefault(index.packs[place.pack], {})[digest] = place
    ends = _ends(index)
    for found in in_parallel(lambda item: _read_pack(store, item[0], item[1], ends[item[0]]), by_pack.items(), workers):
        yield from found


def _ends(index: PackIndex) -> dict[str, int]:
    ends = dict.fromkeys(index.packs, 0)
    for place in index.blocks.values():
        name = index.packs[place.pack]
        ends[name] = max(ends[name], place.offset + place.length)
    return ends


def _read_pack(store: ObjectStore, name: str, wanted: dict[str, BlockPlace], end: int) -> list[tuple[str, bytes]]:
    ordered = sorted(wanted.items(), key=lambda item: item[1].offset)
    whole = sum(place.length for place in wanted.values()) * _WHOLE >= end
    runs = [ordered] if whole else _runs(ordered)
    result = []
    for run in runs:
        start, data = _get(store, name, run, whole)
        for digest, place in run:
            content = data[place.offset - start : place.offset - start + place.length]
            if digest_of(content) != digest:
                raise damaged("pack", name, f"its block {digest[:16]} does not have the digest that names it")
            result.append((digest, content))
    return result


def _get(store: ObjectStore, name: str, run: list[tuple[str, BlockPlace]], whole: bool) -> tuple[int, bytes]:
    """Return where in the pack the bytes begin that hold a run of blocks, and the bytes."""
    key = objects.pack_key(name)
    try:
        if not whole:
            start, end = run[0][1].offset, max(place.offset + place.length for _, place in run)
            return start, store.get_range(key, start, end - start)
        data = store.get(key)
    except FluxError as error:
        if error.code is Code.NOT_FOUND:
            raise missing("pack", name) from error
        raise
    if digest_of(data) != objects.pack_digest(name):
        raise damaged("pack", name, "its content does not have the digest that names it")
    return 0, data


def _runs(ordered: list[tuple[str, BlockPlace]]) -> list[list[tuple[str, BlockPlace]]]:
    runs: list[list[tuple[str, BlockPlace]]] = []
    end = -_GAP - 1
    for item in ordered:
        if item[1].offset - end > _GAP:
            runs.append([])
        runs[-1].append(item)
        end = max(end, item[1].offset + item[1].length)
    return runs


def in_parallel(action: Callable[[S], T], items: Iterable[S], workers: int) -> Iterator[T]:
    """Yield ``action`` of every item, in order, at most ``workers`` at a time; with none, one by one in this thread."""
    if workers < 1:
        yield from map(action, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="artifacts")
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(copy_context().run, action, item))
            if len(waiting) >= workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
