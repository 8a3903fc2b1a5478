"""Fetches: every digest checked, nothing half-made visible, the object store left as it is (lifecycle case 6, I6)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flux.core.artifact import BLOCK
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.failpoints import Point, armed
from flux.testing.crash import Nth, count, fail
from flux.testing.objects import FakeObjectStore, denying, down
from tests.engine.artifacts.kit import Node, noise, write
from tests.trees.kit import differences


class Died(BaseException):
    """The node is gone."""


@pytest.fixture
def store() -> FakeObjectStore:
    return FakeObjectStore()


@pytest.fixture
def here(tmp_path: Path, store: FakeObjectStore) -> Node:
    return Node(tmp_path / "a", store)


@pytest.fixture
def reference(here: Node) -> ArtifactReference:
    found = here.save(write(b=noise(2, 3 * BLOCK), c=b""), here.save(write(a=noise(1, 300 * BLOCK + 5))))
    here.mover.upload(found)
    return found


def check(here: Node, there: Node, reference: ArtifactReference) -> None:
    for restored, captured in zip(there.look(reference), here.look(reference), strict=True):
        assert not differences(restored, captured)
    assert not there.drafts()


def refused(there: Node, reference: ArtifactReference) -> FluxError:
    """Fetch what cannot be fetched: nothing of it is visible."""
    with pytest.raises(FluxError) as raised:
        there.mover.fetch(reference)
    assert not there.mover.has(reference.id)
    assert not there.drafts()
    return raised.value


@pytest.mark.parametrize("kind", ["artifacts/", "layers/", "packs/"])
@pytest.mark.parametrize("at", [0, -1, 10])
def test_case_6_one_flipped_bit_is_an_error_and_the_original_is_kept(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path, kind: str, at: int
) -> None:
    there = Node(tmp_path / "b", store)
    for key in [key for key in store.objects if key.startswith(kind)]:
        good = dict(store.objects)
        store.damage(key, at)
        bad = dict(store.objects)
        error = refused(there, reference)
        assert (error.code, error.details["reason"]) == (Code.INTERNAL, "DataLoss")
        assert store.objects == bad, "the object store is left as it is"
        store.objects = good
    there.mover.fetch(reference)
    check(here, there, reference)


@pytest.mark.parametrize("kind", ["artifacts/", "layers/", "packs/"])
def test_a_missing_object_is_not_found(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path, kind: str
) -> None:
    there = Node(tmp_path / "b", store)
    for key in [key for key in store.objects if key.startswith(kind)]:
        data = store.objects.pop(key)
        error = refused(there, reference)
        assert (error.code, error.details["reason"]) == (Code.NOT_FOUND, "ArtifactMissing")
        store.objects[key] = data
    there.mover.fetch(reference)
    check(here, there, reference)


def test_a_shorter_pack_is_an_error(store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path) -> None:
    (key, *_) = [key for key in store.objects if key.startswith("packs/")]
    store.objects[key] = store.objects[key][:-1]
    assert refused(Node(tmp_path / "b", store), reference).details["reason"] == "DataLoss"


def test_another_artifact_under_the_name_is_an_error(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path
) -> None:
    other = here.save(write(z=b"other"))
    here.mover.upload(other)
    store.objects[f"artifacts/{reference.id}.json"] = store.objects[f"artifacts/{other.id}.json"]
    assert refused(Node(tmp_path / "b", store), reference).details["reason"] == "DataLoss"


def test_a_second_copy_stands_in_for_a_damaged_one(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path
) -> None:
    layer = here.layers.read_artifact(reference.id).layers[0]
    (key,) = [key for key in store.objects if key.startswith(f"layers/{layer}/")]
    store.objects[key.replace(".json", "9.json")] = store.objects[key]
    store.damage(key)
    there = Node(tmp_path / "b", store)
    there.mover.fetch(reference)
    check(here, there, reference)


def test_a_full_disk_is_noticed_before_anything_is_read(
    store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path
) -> None:
    there = Node(tmp_path / "b", store, room=lambda path: 300 * BLOCK)
    before = len(store.calls)
    assert refused(there, reference).code is Code.EXHAUSTED
    assert not [key for _, key in store.calls[before:] if key.startswith("packs/")]
    assert there.visible() == ([], [])


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, Code.EXHAUSTED), (errno.EIO, Code.UNAVAILABLE)])
def test_every_call_that_fails_is_an_error_and_can_be_repeated(
    here: Node, store: FakeObjectStore, tmp_path: Path, number: int, code: Code
) -> None:
    small = here.save(write(a=noise(1, BLOCK + 1)))
    here.mover.upload(small)
    calls = count(lambda: Node(tmp_path / "counted", store).mover.fetch(small))
    assert calls > 15
    for call in range(5, calls + 1):
        there = Node(tmp_path / str(call), store)
        with armed(Nth(call, fail(number))):
            try:
                there.mover.fetch(small)
            except FluxError as error:
                assert error.code is code
        there.mover.fetch(small)
        check(here, there, small)


def test_a_crash_at_any_call_leaves_nothing_half_made(here: Node, store: FakeObjectStore, tmp_path: Path) -> None:
    small = here.save(write(a=noise(1, BLOCK + 1)))
    here.mover.upload(small)

    def die(point: Point) -> None:
        raise Died

    calls = count(lambda: Node(tmp_path / "counted", store).mover.fetch(small))
    for call in range(5, calls + 1):
        there = Node(tmp_path / str(call), store)
        with armed(Nth(call, die, onwards=True)), contextlib.suppress(Died):
            there.mover.fetch(small)
        again = Node(tmp_path / str(call), store)
        if again.mover.has(small.id):
            check(here, again, small)
        again.mover.fetch(small)
        check(here, again, small)
        again.mover.verify(small)


@pytest.mark.parametrize(("error", "code"), [(down, Code.UNAVAILABLE), (denying, Code.DENIED)])
def test_a_store_that_fails_is_said_to(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path, error: Callable, code: Code
) -> None:
    there = Node(tmp_path / "b", store)
    for kind in ("artifacts/", "layers/", "packs/"):
        with store.failing(error, key=kind):
            assert refused(there, reference).code is code
    there.mover.fetch(reference)
    check(here, there, reference)


def test_concurrent_fetches_end_with_one(
    here: Node, store: FakeObjectStore, reference: ArtifactReference, tmp_path: Path
) -> None:
    there = Node(tmp_path / "b", store, workers=2)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(there.mover.fetch, reference) for _ in range(4)]:
            done.result()
    check(here, there, reference)
    assert there.visible() == ([reference.id], sorted(here.layers.layers()))


def test_without_a_store_only_what_is_here_is_found(here: Node, reference: ArtifactReference, tmp_path: Path) -> None:
    alone = Node(tmp_path / "a", None)
    alone.mover.fetch(reference)
    assert refused(Node(tmp_path / "b", None), reference).details["reason"] == "ArtifactMissing"


def test_verify_names_what_is_not_what_it_was(here: Node, reference: ArtifactReference) -> None:
    here.mover.verify(reference)
    layer = here.layers.read_artifact(reference.id).layers[0]
    path = Path(here.layers.tree(layer)) / "b"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FluxError, match="/b") as raised:
        here.mover.verify(reference)
    assert raised.value.details["reason"] == "DataLoss"


def test_only_what_nothing_needs_is_removed(here: Node, reference: ArtifactReference) -> None:
    parent = here.layers.read_artifact(reference.id).parent
    base = here.layers.read_artifact(reference.id).layers[1]
    stranger = here.save(write(z=noise(9, BLOCK)))
    unnamed, _ = here.capture(write(y=b"about to be named"))
    assert here.mover.keep_only([reference.id]) == BLOCK
    assert not here.mover.has(stranger.id) and not here.mover.has(parent or "")
    assert here.layers.has(base) and here.layers.has(unnamed)
    here.layers.release([unnamed])
    here.mover.keep_only([])
    assert here.visible() == ([], [])
