"""Uploads: all or nothing, repeated to the end, and never of what is not what was captured (lifecycle case 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flux.core.artifact import BLOCK
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.failpoints import Point, armed
from flux.testing.crash import Nth
from flux.testing.objects import FakeObjectStore, Method, denying, down, refusing, slow
from tests.engine.artifacts.kit import Node, noise, write
from tests.trees.kit import differences


class Died(BaseException):
    """The uploader is gone."""


@pytest.fixture
def store() -> FakeObjectStore:
    return FakeObjectStore()


@pytest.fixture
def node(tmp_path: Path, store: FakeObjectStore) -> Node:
    return Node(tmp_path / "a", store)


def saved(node: Node) -> ArtifactReference:
    return node.save(write(b=noise(2, 3 * BLOCK)), node.save(write(a=noise(1, 300 * BLOCK + 5))))


def is_published(store: FakeObjectStore, reference: ArtifactReference) -> bool:
    return f"artifacts/{reference.id}.json" in store.objects


def check_restored(node: Node, store: FakeObjectStore, reference: ArtifactReference, place: Path) -> None:
    there = Node(place, store, "other")
    there.mover.fetch(reference)
    for restored, captured in zip(there.look(reference), node.look(reference), strict=True):
        assert not differences(restored, captured)


def test_case_5_an_uploader_killed_at_each_point_is_not_durable_before_it_is(
    node: Node, store: FakeObjectStore, tmp_path: Path
) -> None:
    reference = saved(node)
    seen: list[Point] = []

    def die(point: Point) -> None:
        seen.append(point)
        raise Died

    others = [point for point in Point if not point.value.startswith("upload.")]
    while len(seen) < 100:
        number = len(seen) + 1
        store.objects.clear()
        try:
            with armed(Nth(number, die, spared=others)):
                node.mover.upload(reference)
            break
        except Died:
            assert is_published(store, reference) == (seen[-1] in (Point.UPLOAD_MANIFEST, Point.UPLOAD_CONFIRMED))
        node.mover.upload(reference)
        check_restored(node, store, reference, tmp_path / str(number))
        assert not [key for key in store.objects if key.startswith("intents/")]
        packed = sum(len(data) for key, data in store.objects.items() if key.startswith("packs/"))
        assert packed == 303 * BLOCK + 5, "what the killed one sent is used again"
    assert seen[0] is Point.UPLOAD_INTENT
    assert seen[-2:] == [Point.UPLOAD_MANIFEST, Point.UPLOAD_CONFIRMED]
    assert set(seen[1:-2]) == {Point.UPLOAD_PART}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (down, Code.UNAVAILABLE),
        (slow, Code.UNAVAILABLE),
        (refusing, Code.EXHAUSTED),
        (denying, Code.DENIED),
    ],
)
def test_a_store_that_fails_at_any_call_is_tried_again_to_the_end(
    node: Node, store: FakeObjectStore, tmp_path: Path, error: Callable[[], FluxError], code: Code
) -> None:
    reference = saved(node)
    for number in range(1, 200):
        left = [number]

        def fail(method: Method, key: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise error()

        store.before = fail
        try:
            node.mover.upload(reference)
            break
        except FluxError as raised:
            assert raised.code is code
    store.before = lambda method, key: None
    assert number > 10
    check_restored(node, store, reference, tmp_path / "b")


@pytest.mark.parametrize("key", ["intents/", "packs/", "layers/", "artifacts/"])
def test_a_put_whose_reply_is_lost_was_done(node: Node, store: FakeObjectStore, tmp_path: Path, key: str) -> None:
    reference = saved(node)
    store.lose_reply(key)
    with pytest.raises(FluxError, match="no answer in time"):
        node.mover.upload(reference)
    node.mover.upload(reference)
    check_restored(node, store, reference, tmp_path / "b")


def test_a_second_upload_sends_nothing(node: Node, store: FakeObjectStore) -> None:
    reference = saved(node)
    assert node.mover.upload(reference) == store.received
    before = dict(store.objects)
    assert node.mover.upload(reference) == 0
    assert store.objects == before


def test_a_content_that_is_not_what_was_captured_is_never_published(node: Node, store: FakeObjectStore) -> None:
    reference = saved(node)
    layer = node.layers.read_artifact(reference.id).layers[1]
    path = Path(node.layers.tree(layer)) / "a"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FluxError) as raised:
        node.mover.upload(reference)
    assert (raised.value.code, raised.value.details["reason"]) == (Code.INTERNAL, "DataLoss")
    assert not is_published(store, reference)
    assert not [key for key in store.objects if key.startswith("layers/")]


def test_only_changed_blocks_of_a_file_that_was_copied_up_whole_are_sent(node: Node, store: FakeObjectStore) -> None:
    data = bytearray(noise(1, 100 * BLOCK))
    first = node.save(write(large=bytes(data)))
    node.mover.upload(first)
    data[50 * BLOCK] ^= 1
    second = node.save(write(large=bytes(data)), first)
    before = store.received
    node.mover.upload(second)
    assert BLOCK < store.received - before < 2 * BLOCK


def test_an_acknowledged_object_that_is_not_there_is_noticed(node: Node, store: FakeObjectStore) -> None:
    reference = saved(node)

    def forget(method: Method, key: str) -> None:
        if method == "head" and key.startswith("packs/"):
            store.objects.pop(key, None)

    store.before = forget
    with pytest.raises(FluxError, match="cannot confirm packs/") as raised:
        node.mover.upload(reference)
    assert raised.value.code is Code.UNAVAILABLE
    assert not is_published(store, reference)


def test_another_content_under_the_artifacts_name_stays_and_is_an_error(node: Node, store: FakeObjectStore) -> None:
    reference = saved(node)
    store.objects[f"artifacts/{reference.id}.json"] = b"other"
    with pytest.raises(FluxError) as raised:
        node.mover.upload(reference)
    assert raised.value.details["reason"] == "DataLoss"
    assert store.objects == {f"artifacts/{reference.id}.json": b"other"}


def test_a_bound_artifact_and_a_node_without_a_store_upload_nothing(node: Node, tmp_path: Path) -> None:
    with pytest.raises(FluxError) as raised:
        node.mover.upload(node.artifact(bound=True))
    assert raised.value.code is Code.NOT_APPLICABLE
    alone = Node(tmp_path / "alone", None)
    with pytest.raises(FluxError, match="there is no object store") as raised:
        alone.mover.upload(alone.save(write(a=b"1")))
    assert raised.value.code is Code.UNAVAILABLE
