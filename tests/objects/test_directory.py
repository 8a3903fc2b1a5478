"""The object store's contract in a directory, its faults, and a loss of power at each of its calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.objects.directory import DirectoryStore
from flux.testing.contracts.objects import ObjectStoreContract, refusal
from flux.testing.crash import Nth, count, fail
from flux.testing.powerloss import ForgetfulFiles
from flux.trees.files import SystemFiles


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path / "objects"), SystemFiles())


class TestDirectory(ObjectStoreContract):
    """On the file system of the tests."""


def unnamed(place: Path) -> list[str]:
    incoming = place / "objects/.incoming"
    return os.listdir(incoming) if incoming.exists() else []


class Cut(Exception):
    """Power is lost."""


def test_power_lost_at_any_call_leaves_all_of_an_object_or_nothing(tmp_path: Path) -> None:
    """What ``put_new`` returned stays; what it did not return is there as a whole, or not at all."""
    number, returned = 0, False
    while not returned:
        number += 1
        for surviving in (0.0, 0.5, 1.0):
            place = tmp_path / f"{number}-{surviving}"
            (place / "limbo").mkdir(parents=True)
            files = ForgetfulFiles(SystemFiles(), os.open(place / "limbo", os.O_RDONLY | os.O_DIRECTORY))
            returned = _put_until(number, DirectoryStore(str(place / "objects"), files))
            files.cut(surviving)
            again = DirectoryStore(str(place / "objects"), SystemFiles())
            found = again.head("packs/a/b")
            assert found in ((4,) if returned else (None, 4)), (number, surviving)
            assert found is None or again.get("packs/a/b") == b"data"
            again.put_new("packs/a/b", b"data")
            again.put_new("packs/a/c", b"more")
            assert again.get("packs/a/b") == b"data"
            assert not unnamed(place), "the next who stores something clears up"
    assert number > 10


def _put_until(number: int, store: DirectoryStore) -> bool:
    def cut(point: Point) -> None:
        raise Cut

    with armed(Nth(number, cut, onwards=True)):
        try:
            return store.put_new("packs/a/b", b"data")
        except Cut:
            return False


def test_every_call_that_fails_is_an_error_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    calls = count(lambda: DirectoryStore(str(tmp_path / "counted"), SystemFiles()).put_new("packs/a", b"data"))
    for number in range(1, calls):
        store = DirectoryStore(str(tmp_path / str(number)), SystemFiles())
        with armed(Nth(number, fail(errno.ENOSPC))), pytest.raises(FluxError) as raised:
            store.put_new("packs/a", b"data")
        assert raised.value.code is Code.EXHAUSTED
        assert store.head("packs/a") in (None, 4)
        store.put_new("packs/a", b"data")
        assert store.get("packs/a") == b"data"


def test_what_is_being_written_is_not_cleared_up(tmp_path: Path) -> None:
    place = str(tmp_path / "objects")
    DirectoryStore(place, SystemFiles()).put_new("packs/first", b"1")
    seen: list[bool] = []

    def other(point: Point) -> None:
        if point is Point.OBJECT_WRITE and not seen and unnamed(tmp_path):
            seen.append(True)
            assert DirectoryStore(place, SystemFiles()).put_new("packs/other", b"2")

    with armed(other):
        assert DirectoryStore(place, SystemFiles()).put_new("packs/a", b"data")
    assert seen == [True]
    assert DirectoryStore(place, SystemFiles()).get("packs/a") == b"data"


def test_a_store_that_is_not_mounted_is_unavailable(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "missing/objects"), SystemFiles())
    assert refusal(lambda: store.put_new("packs/a", b"")) is Code.UNAVAILABLE
    assert store.head("packs/a") is None
    (tmp_path / "missing").write_text("no directory")
    assert refusal(lambda: store.get("packs/a")) is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, Code.DENIED), (errno.EROFS, Code.DENIED), (errno.EIO, Code.UNAVAILABLE)],
)
def test_what_the_disk_answers_has_a_code(tmp_path: Path, number: int, code: Code) -> None:
    store = DirectoryStore(str(tmp_path / "objects"), SystemFiles())
    with armed(Nth(1, fail(number))):
        assert refusal(lambda: store.put_new("packs/a", b"data")) is code


def test_links_lead_nowhere(store: DirectoryStore, tmp_path: Path) -> None:
    store.put_new("packs/a", b"1")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "objects/packs/b").symlink_to(tmp_path / "secret")
    (tmp_path / "objects/layers").symlink_to(tmp_path)
    assert refusal(lambda: store.get("packs/b")) is Code.UNAVAILABLE
    assert refusal(lambda: store.get("layers/secret")) is Code.UNAVAILABLE
    assert [key for key, _, _ in store.list("")] == ["packs/a"]
