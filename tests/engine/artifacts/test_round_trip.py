"""What is uploaded here and fetched elsewhere is exactly what was captured."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.core.artifact import BLOCK
from flux.objects.directory import DirectoryStore
from flux.ports.artifacts import Progress
from flux.testing.objects import FakeObjectStore
from flux.trees.files import SystemFiles
from tests.engine.artifacts.kit import OLD, Node, everything, noise, write
from tests.trees.kit import differences


def test_a_tree_of_every_kind_is_restored_exactly(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "objects"), SystemFiles())
    here, there = Node(tmp_path / "a", store, workers=2), Node(tmp_path / "b", store, "other", workers=2)
    first = here.save(everything)
    second = here.save(write(more=noise(2, 300_000)), first)
    told: list[Progress] = []
    sent = here.mover.upload(second, told.append)
    there.mover.fetch(second)
    assert there.visible() == ([second.id], sorted(here.layers.layers()))
    for restored, captured in zip(there.look(second), here.look(second), strict=True):
        assert not differences(restored, captured)
    there.mover.verify(second)
    assert [progress.sent for progress in told] == sorted(progress.sent for progress in told)
    assert told[-1] == Progress(sent=sent, total=sent)
    assert not there.drafts()


def test_holes_take_no_room_and_are_not_sent(tmp_path: Path) -> None:
    def sparse(top: Path) -> None:
        with (top / "sparse").open("wb") as file:
            file.truncate(1 << 30)
            file.seek(1 << 29)
            file.write(b"x")

    store = FakeObjectStore()
    here, there = Node(tmp_path / "a", store), Node(tmp_path / "b", store)
    reference = here.save(sparse)
    here.mover.upload(reference)
    assert sum(len(data) for key, data in store.objects.items() if key.startswith("packs/")) == BLOCK
    there.mover.fetch(reference)
    path = Path(there.layers.tree(there.layers.layers()[0])) / "sparse"
    assert path.stat().st_size == 1 << 30
    assert path.stat().st_blocks * 512 <= 2 * BLOCK
    assert not differences(there.look(reference)[0], here.look(reference)[0])


def test_what_is_here_is_not_fetched(tmp_path: Path) -> None:
    store = FakeObjectStore()
    here = Node(tmp_path / "a", store)
    reference = here.save(write(a=b"1"))
    here.mover.fetch(reference)
    assert store.calls == []
    assert (here.mover.has(reference.id), here.mover.has("0" * 32)) == (True, False)


def test_of_an_artifact_only_what_is_not_here_is_fetched(tmp_path: Path) -> None:
    store = FakeObjectStore()
    here, there = Node(tmp_path / "a", store), Node(tmp_path / "b", store)
    first = here.save(write(a=noise(1, 10 * BLOCK)))
    second = here.save(write(b=noise(2, BLOCK)), first)
    here.mover.upload(second)
    here.mover.upload(first)
    there.mover.fetch(first)
    before = len(store.calls)
    there.mover.fetch(second)
    read = [key for method, key in store.calls[before:] if method in ("get", "get_range")]
    assert len([key for key in read if key.startswith("layers/")]) == 1
    assert len([key for key in read if key.startswith("packs/")]) == 1


class Shape:
    """A tree that grows from random choices."""

    def __init__(self, choices: random.Random) -> None:
        self._choices = choices
        self._files: list[Path] = []

    def grow(self, top: Path, entries: int) -> None:
        places = [top]
        for number in range(entries):
            place = self._choices.choice(places) / self._name(number)
            kind = self._choices.choice("dffffsl")
            if kind == "d":
                place.mkdir()
                places.append(place)
            elif kind == "s":
                place.symlink_to(self._name(number))
            elif kind == "l" and self._files:
                os.link(self._choices.choice(self._files), place)
            else:
                self._write(place)
        for path in sorted([*top.rglob("*"), top], reverse=True):
            if not path.is_symlink():
                path.chmod(self._choices.choice([0o700, 0o755, 0o1777, 0o750]))
            os.utime(path, ns=(OLD, OLD + self._choices.randrange(1 << 40)), follow_symlinks=False)

    def _name(self, number: int) -> str:
        return os.fsdecode(
            b"%d-%s" % (number, self._choices.choice([b"a", b"\xff", b"base64:", b" ", b"\xc3\xa4", b"%"]))
        )

    def _write(self, place: Path) -> None:
        with place.open("wb") as file:
            for _ in range(self._choices.randrange(4)):
                file.seek(self._choices.randrange(6) * BLOCK + self._choices.choice([0, 1, BLOCK - 1]))
                file.write(noise(self._choices.randrange(5), self._choices.choice([1, 100, BLOCK, BLOCK + 1])))
            file.truncate(max(file.tell(), self._choices.choice([0, 0, 7 * BLOCK, 3 * BLOCK + 9])))
        self._files.append(place)


@settings(max_examples=40)
@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 14), min_size=1, max_size=4))
def test_random_trees_are_restored_exactly(seed: int, layers: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = FakeObjectStore()
        here, there = Node(Path(name) / "a", store), Node(Path(name) / "b", store, "other")
        reference = None
        for number, entries in enumerate(layers):
            shape = Shape(random.Random(seed + number))
            reference = here.save(lambda top, shape=shape, entries=entries: shape.grow(top, entries), reference)
            if number % 2:
                here.mover.upload(reference)
        assert reference is not None
        here.mover.upload(reference)
        there.mover.fetch(reference)
        assert there.look(reference) == here.look(reference)
        there.mover.verify(reference)
        again = Node(Path(name) / "c", None)
        for layer_id in here.layers.read_artifact(reference.id).layers:
            assert there.layers.read(layer_id) == here.layers.read(layer_id)
        assert again.visible() == ([], [])


@pytest.mark.root
def test_owners_devices_and_whiteouts_are_restored(tmp_path: Path) -> None:
    store = FakeObjectStore()
    here, there = Node(tmp_path / "a", store), Node(tmp_path / "b", store)
    reference = here.save(everything)
    here.mover.upload(reference)
    there.mover.fetch(reference)
    (restored,) = there.look(reference)
    assert restored["/plain/file"][1:4] == ("0o4711", 12, 34)
    assert restored["/plain/null"][5] == os.makedev(1, 3)
    assert restored["/gone"][5] == 0
    assert dict(restored["/opaque"][8]) == {"trusted.overlay.opaque": b"y"}
    assert dict(restored["/moved"][8]) == {"trusted.overlay.redirect": b"/from \xff here"}
    assert restored["/linked/one"][-1] == ("/deep/three", "/linked/one", "/linked/two")
