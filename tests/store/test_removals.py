"""Trees that are removed after the answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux import failpoints
from flux.failpoints import Point
from flux.store import removal
from flux.store.removal import Removals
from flux.trees.files import SystemFiles

STEP = Point.SANDBOX_DELETE


class Held(SystemFiles):
    """Files that are unlinked only when they may be."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def unlink(self, step: Point, directory: int, name: str) -> None:
        assert self.may.wait(30)
        super().unlink(step, directory, name)


class Places:
    def __init__(self, folder: Path, files: SystemFiles) -> None:
        self.home, self.gone = folder / "home", folder / "gone"
        self.home.mkdir()
        self.gone.mkdir()
        self.descriptors = [os.open(path, os.O_RDONLY) for path in (self.home, self.gone)]
        self.removals = Removals(files, STEP, self.descriptors[1])

    def make(self, name: str) -> None:
        (self.home / name / "deep").mkdir(parents=True)
        (self.home / name / "deep" / "file").write_text("x")

    def take(self, name: str) -> None:
        self.removals.take(self.descriptors[0], name, name)

    def left(self) -> list[str]:
        return sorted(entry.name for entry in (*self.home.iterdir(), *self.gone.iterdir()))


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def places(tmp_path: Path, held: Held) -> Iterator[Places]:
    made = Places(tmp_path, held)
    yield made
    held.may.set()
    made.removals.close()
    for descriptor in made.descriptors:
        os.close(descriptor)


def test_a_tree_is_out_of_the_way_at_once_and_gone_soon(places: Places, held: Held) -> None:
    places.make("one")
    places.take("one")
    assert places.left() == ["gone-one-1"]
    assert places.removals.pending() == {"gone-one-1"}
    places.make("one")
    places.take("one")
    held.may.set()
    places.removals.close()
    assert (places.left(), places.removals.pending()) == ([], set())


def test_what_is_not_there_needs_no_removal(places: Places) -> None:
    places.take("nothing")
    assert places.left() == []


def test_a_name_that_a_crash_left_is_not_taken_again(places: Places, held: Held) -> None:
    (places.gone / "gone-one-1").mkdir()
    places.make("one")
    places.take("one")
    assert places.left() == ["gone-one-1", "gone-one-2"]


def test_who_comes_when_many_wait_removes_his_own(places: Places, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_WAITING_MAX", 0)
    held.may.set()
    places.make("one")
    places.take("one")
    assert places.left() == []


def test_what_cannot_be_put_away_stays_and_is_reported(places: Places) -> None:
    places.make("one")

    def fail(point: Point) -> None:
        raise OSError(28, "No space left on device")

    with failpoints.armed(fail), pytest.raises(OSError, match="No space"):
        places.take("one")
    assert places.left() == ["one"]
