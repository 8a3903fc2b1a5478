"""Changeset directories: whole or not there, at whatever call a crash comes."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from flux.core.changeset import State
from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.store.changesets import BLOBS, PREIMAGES
from flux.store.removal import remove_tree
from flux.store.stores import Stores
from flux.testing import crash
from flux.trees.files import SystemFiles
from tests.store import samples


def publish(stores: Stores, changeset_id: str = "cs1") -> None:
    with stores.changesets.draft(changeset_id) as draft:
        descriptor = os.open("000000", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=draft.blobs)
        os.write(descriptor, b"hi")
        os.close(descriptor)
        stores.changesets.publish(draft, samples.changeset(changeset_id), samples.changes(), b"{}", b"{}")


def test_what_is_published_reads_back(stores: Stores, state: Path) -> None:
    publish(stores)
    assert stores.changesets.read("cs1") == samples.changeset()
    assert stores.changesets.read_changes("cs1") == samples.changes()
    assert stores.changesets.read_base("cs1") == b"{}"
    assert stores.changesets.read_request("cs1") == b"{}"
    assert stores.changesets.ids() == ["cs1"]
    assert stores.changesets.drafts() == []
    descriptor = stores.changesets.open_blob("cs1", "000000")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"hi"
    os.close(descriptor)


def test_only_their_owner_may_look(stores: Stores, state: Path) -> None:
    publish(stores)
    for folder, _, names in os.walk(state / "changesets"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600 for name in names)


def test_a_draft_that_is_not_published_leaves_nothing(stores: Stores, state: Path) -> None:
    with pytest.raises(KeyError), stores.changesets.draft("cs1") as draft:
        os.mkdir("x", dir_fd=draft.blobs)
        raise KeyError
    assert os.listdir(state / "changesets") == []


def test_content_is_durable_before_the_name_and_the_name_before_the_reply(stores: Stores) -> None:
    reached: list[Point] = []
    with stores.changesets.draft("cs1") as draft, armed(reached.append):
        stores.changesets.publish(draft, samples.changeset(), samples.changes(), b"{}")
    assert reached[-2:] == [Point.CHANGESET_PUBLISH, Point.CHANGESET_PUBLISH]
    assert set(reached[:-2]) == {Point.CHANGESET_WRITE}


@pytest.mark.parametrize("number", range(1, 15))
def test_a_crash_at_any_call_of_publishing_leaves_it_whole_or_a_draft(stores: Stores, state: Path, number: int) -> None:
    calls = crash.count(lambda: publish(stores, "cs0"))
    assert calls <= 14, "a call was added: make the sweep as long"
    ended = crash.in_child(lambda: publish(stores), crash.Nth(number, crash.die))
    assert ended == (-signal.SIGKILL if number <= calls else 0)
    if "cs1" in stores.changesets.ids():
        assert stores.changesets.read("cs1") == samples.changeset()
        assert stores.changesets.read_changes("cs1") == samples.changes()
    else:
        assert stores.changesets.drafts() in ([], ["cs1"])
        stores.changesets.delete("cs1")
        assert stores.changesets.drafts() == []


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize(
    "effect", [crash.die, crash.fail(errno.EIO), crash.fail(errno.ENOSPC)], ids=["die", "EIO", "ENOSPC"]
)
def test_a_record_is_the_old_one_or_the_new_one(stores: Stores, number: int, effect: crash.Action) -> None:
    publish(stores)
    new = samples.changeset(state=State.APPROVED)
    crash.in_child(lambda: stores.changesets.replace(new), crash.Nth(number, effect))
    assert stores.changesets.read("cs1") in (samples.changeset(), new)
    stores.changesets.replace(new)
    assert stores.changesets.read("cs1") == new


def test_a_full_disk_is_told_and_takes_nothing_away(stores: Stores) -> None:
    publish(stores)
    with armed(crash.Nth(2, crash.fail(errno.ENOSPC))), pytest.raises(FluxError) as caught:
        stores.changesets.replace(samples.changeset(state=State.APPROVED))
    assert caught.value.code is Code.EXHAUSTED
    assert stores.changesets.read("cs1").state is State.PENDING


def test_contents_are_dropped_and_the_rest_stays(stores: Stores, state: Path) -> None:
    publish(stores)
    stores.changesets.drop("cs1", BLOBS, PREIMAGES)
    stores.changesets.drop("cs1", BLOBS, PREIMAGES)
    assert sorted(os.listdir(state / "changesets" / "cs1")) == [
        "base.json",
        "changes.json",
        "meta.json",
        "request.json",
    ]
    assert stores.changesets.open_blob("cs1", "000000") is None


def test_deleting_leaves_nothing_and_may_be_repeated(stores: Stores, state: Path) -> None:
    publish(stores)
    stores.changesets.delete("cs1")
    stores.changesets.delete("cs1")
    assert os.listdir(state / "changesets") == []
    with pytest.raises(FluxError) as caught:
        stores.changesets.read("cs1")
    assert caught.value.code is Code.NOT_FOUND


def test_a_damaged_record_is_told_by_name(stores: Stores, state: Path) -> None:
    publish(stores)
    (state / "changesets" / "cs1" / "meta.json").write_bytes(b'{"id": 1}')
    with pytest.raises(FluxError) as caught:
        stores.changesets.read("cs1")
    assert caught.value.code is Code.INTERNAL
    assert "meta.json" in caught.value.message


def test_a_tree_deeper_than_descriptors_reach_and_closed_to_its_owner_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    place = top
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    held = os.dup(descriptor)
    for level in range(1500):
        name = "top" if level == 0 else "d"
        os.mkdir(name, dir_fd=held)
        following = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=held)
        os.close(held)
        held = following
    os.close(held)
    outside = tmp_path / "outside"
    outside.write_text("stays")
    (place / "link").symlink_to(outside)
    os.chmod(place, 0)
    remove_tree(SystemFiles(), Point.SCRATCH, descriptor, "top")
    os.close(descriptor)
    assert os.listdir(tmp_path) == ["outside"]
    assert outside.read_text() == "stays"
