"""What happens in directories is told as it happened: by name, in order, and never silently too little."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flux.trees.inotify import DirectoryWatch, Event, Happened

SECONDS = 20.0

Open = Callable[..., DirectoryWatch]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Open]:
    opened: list[DirectoryWatch] = []

    def start(**options: object) -> DirectoryWatch:
        handle = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
        try:
            opened.append(DirectoryWatch(handle, **options))  # type: ignore[arg-type]  # what a test varies
        finally:
            os.close(handle)
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def read(watch: DirectoryWatch) -> list[tuple[str, str]]:
    return [(event.happened.value, event.name) for event in watch.read()]


def until(watch: DirectoryWatch, wanted: Event) -> list[Event]:
    seen: list[Event] = []
    while wanted not in seen:
        assert select.select([watch.descriptor], [], [], SECONDS)[0], seen
        seen += watch.read()
    return seen


def test_each_kind(watch: Open, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    found = watch()
    assert read(found) == []
    (tmp_path / "new").write_text("x")
    assert read(found) == [("create", "new"), ("write", "new")]
    (tmp_path / "old").chmod(0o600)
    assert read(found) == [("chmod", "old")]
    (tmp_path / "old").rename(tmp_path / "moved")
    assert read(found) == [("rename", "old"), ("create", "moved")]
    (tmp_path / "moved").unlink()
    assert read(found) == [("remove", "moved")]
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "below").write_text("x")
    assert read(found) == [("create", "link"), ("create", "d")]


def test_moves_in_and_out(watch: Open, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    beside = tmp_path_factory.mktemp("beside")
    (beside / "in").write_text("x")
    (tmp_path / "out").write_text("x")
    found = watch()
    os.rename(beside / "in", tmp_path / "in")
    os.rename(tmp_path / "out", beside / "out")
    assert read(found) == [("create", "in"), ("rename", "out")]


def test_new_directories_are_followed_with_what_was_made_in_them_meanwhile(watch: Open, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = watch(recursive=True)
    (tmp_path / "a" / "b" / "f").write_text("x")
    (tmp_path / "new" / "below").mkdir(parents=True)
    (tmp_path / "new" / "below" / "f").write_text("x")
    assert read(found)[:2] == [("create", "a/b/f"), ("write", "a/b/f")]
    (tmp_path / "new" / "below" / "f").write_text("again")
    assert read(found) == [("write", "new/below/f")]


def test_what_was_made_before_its_directory_was_watched_is_told_once(watch: Open, tmp_path: Path) -> None:
    found = watch(recursive=True)
    (tmp_path / "new" / "below").mkdir(parents=True)
    (tmp_path / "new" / "below" / "f").write_text("x")
    assert read(found) == [("create", "new"), ("create", "new/below"), ("create", "new/below/f")]
    (tmp_path / "new" / "below" / "f").unlink()
    (tmp_path / "new" / "below" / "f").write_text("")
    assert read(found) == [("remove", "new/below/f"), ("create", "new/below/f")]


def test_a_directory_is_followed_where_it_is_moved(
    watch: Open, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = tmp_path_factory.mktemp("beside")
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = watch(recursive=True)
    os.rename(tmp_path / "a", tmp_path / "z")
    (tmp_path / "z" / "b" / "f").touch()
    assert read(found) == [("rename", "a"), ("create", "z"), ("create", "z/b/f")]
    os.rename(tmp_path / "z", beside / "z")
    assert read(found) == [("rename", "z")]
    (beside / "z" / "b" / "g").touch()
    assert read(found) == []
    os.rename(beside / "z", tmp_path / "back")
    assert read(found) == [("create", "back")]
    (tmp_path / "back" / "b" / "f").unlink()
    assert read(found) == [("remove", "back/b/f")]


def test_a_tree_that_is_removed_is_told_from_below(watch: Open, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").touch()
    found = watch(recursive=True)
    (tmp_path / "a" / "b" / "f").unlink()
    (tmp_path / "a" / "b").rmdir()
    (tmp_path / "a").rmdir()
    assert read(found) == [("remove", "a/b/f"), ("remove", "a/b"), ("remove", "a")]


def test_the_directory_itself(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    handle = os.open(tmp_path / "w", os.O_PATH | os.O_DIRECTORY)
    found = DirectoryWatch(handle)
    os.close(handle)
    try:
        (tmp_path / "w").chmod(0o700)
        (tmp_path / "other").mkdir()
        (tmp_path / "other").rmdir()
        assert read(found) == [("chmod", ".")]
        (tmp_path / "w").rename(tmp_path / "v")
        assert read(found) == [("rename", ".")]
        (tmp_path / "v").rmdir()
        assert ("remove", ".") in read(found)
    finally:
        found.close()


@pytest.mark.parametrize("name", ["with space", "\n", "\udcff\udcfe", "l" * 255, "*", "-rf", "ünï 🙂", "(deleted)"])
def test_names_of_any_bytes(watch: Open, tmp_path: Path, name: str) -> None:
    found = watch(recursive=True)
    (tmp_path / name).mkdir()
    read(found)
    (tmp_path / name / name).touch()
    assert read(found) == [("create", f"{name}/{name}")]


def test_too_many_events_are_told_to_be_too_many(watch: Open, tmp_path: Path) -> None:
    found = watch()
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(kept // 2 + 10):
        os.close(os.open(tmp_path / f"f{number}", os.O_CREAT | os.O_WRONLY))
        os.unlink(tmp_path / f"f{number}")
    assert Event(".", Happened.RESCAN) in found.read() + found.read()


def test_too_many_directories_are_refused(watch: Open, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"d{number}").mkdir()
    with pytest.raises(OSError, match="more than 4 directories"):
        watch(recursive=True, limit=4)
    found = watch(recursive=True, limit=5)
    (tmp_path / "one more").mkdir()
    with pytest.raises(OSError, match="more than 5 directories"):
        found.read()


def test_a_directory_that_is_swapped_for_a_link_leads_nowhere(
    watch: Open, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = tmp_path_factory.mktemp("beside")
    found = watch(recursive=True)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (tmp_path / "d").mkdir()
            (tmp_path / "d").rmdir()
            (tmp_path / "d").symlink_to(beside)
            (beside / "secret").touch()
            (beside / "secret").unlink()
            (tmp_path / "d").unlink()
        (tmp_path / "last").touch()

    worker = threading.Thread(target=swap)
    worker.start()
    seen = [event for _ in range(300) for event in found.read()]
    stop.set()
    worker.join()
    seen += until(found, Event("last", Happened.CREATE))
    assert {event.name for event in seen} <= {"d", "last"}
