"""Where layers and artifacts are kept: what is there, what is not there yet, and what is not what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flux.core.artifact import Artifact, Layer, digest_of, encode
from flux.core.errors import Code, FluxError
from flux.trees.files import SystemFiles
from flux.trees.layers.describe import describe, prefix_of
from flux.trees.layers.merge import plan
from flux.trees.layers.store import TREE, LayerStore

ROOT = Layer(entries={"/": "d 755 0 0 0 1 0 0 0 0 - - -"}, contents={}, size=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LayerStore]:
    made = LayerStore(str(tmp_path), SystemFiles())
    yield made
    made.close()


def artifact(*layers: str, generation: int = 1) -> Artifact:
    return Artifact(
        sandbox_id="sb1",
        generation=generation,
        kind="suspend",
        substrate="procbox",
        layers=list(layers),
        created_at=1.0,
    )


def test_a_layer_is_there_when_it_was_published_and_a_draft_never_is(store: LayerStore, tmp_path: Path) -> None:
    draft = Path(store.draft())
    (draft / TREE).mkdir()
    abandoned = Path(store.draft())
    assert store.layers() == []
    layer_id = store.publish(str(draft), ROOT, {"/": "seal"})
    assert layer_id == digest_of(encode(ROOT))
    assert (store.layers(), store.read(layer_id), store.seal(layer_id)) == ([layer_id], ROOT, {"/": "seal"})
    assert store.size(layer_id) == 0
    store.clear_drafts()
    assert not abandoned.exists()
    assert sorted(os.listdir(tmp_path / "layers")) == [layer_id]


def test_an_adopted_tree_comes_back_and_leaves_no_layer(store: LayerStore, tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "f").write_text("1")
    inode = (tmp_path / "upper").stat().st_ino
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        tree = os.open(tmp_path / "upper", os.O_RDONLY)
        found = describe(tree, prefix_of(privileged=True))
        os.close(tree)
        layer_id = store.adopt(found.layer, found.seal, directory, "upper")
        assert layer_id == found.layer_id
        assert not (tmp_path / "upper").exists()
        assert Path(store.tree(layer_id)).stat().st_ino == inode
        assert store.give_back(layer_id, directory, "upper")
        assert (tmp_path / "upper" / "f").read_text() == "1"
        assert store.layers() == []
        assert not store.give_back(layer_id, directory, "upper")
    finally:
        os.close(directory)


def test_an_artifact_needs_its_layers_and_its_digest(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(FluxError) as refusal:
        store.write_artifact(artifact("0" * 64))
    assert refusal.value.code is Code.NOT_FOUND
    reference = store.write_artifact(artifact())
    assert store.artifacts() == [reference.id] == [reference.digest[:32]]
    assert store.read_artifact(reference.id, reference.digest) == artifact()
    with pytest.raises(FluxError) as refusal:
        store.read_artifact(reference.id, reference.digest[:-1] + "x")
    assert refusal.value.details["reason"] == "DataLoss"
    file = tmp_path / "artifacts" / f"{reference.id}.json"
    file.write_bytes(file.read_bytes().replace(b"sb1", b"sb2"))
    with pytest.raises(FluxError) as refusal:
        store.read_artifact(reference.id)
    assert refusal.value.details["reason"] == "DataLoss"
    store.remove_artifact(reference.id)
    store.remove_artifact(reference.id)
    assert store.artifacts() == []


def test_a_stack_stays_low_and_a_large_layer_is_left_alone() -> None:
    assert plan([10, 1000], [0, 0]) == [(0, 1), (1, 2)]
    assert plan([500, 1000], [0, 0]) == [(0, 2)]
    assert plan([500, 1000], [64 << 20, 1]) == [(0, 1), (1, 2)]
    assert plan([1, 1, 2, 1000], [0] * 4) == [(0, 3), (3, 4)]
    heights = []
    weights: list[int] = []
    for _ in range(200):
        runs = plan(weights, [0] * len(weights))
        weights = [10, *(sum(weights[start:end]) for start, end in runs)]
        heights.append(len(weights))
    assert max(heights) <= 10


def test_many_who_look_at_once_all_see_everything(store: LayerStore, tmp_path: Path) -> None:
    made = sorted(f"{number:032x}" for number in range(2000))  # more than one call to the kernel lists
    for name in made:
        (tmp_path / "artifacts" / f"{name}.json").touch()

    def look(_: int) -> bool:
        return store.has_artifact(made[-1]) and store.artifacts() == made

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(look, range(200)))
    assert not store.has_artifact("f" * 32)
