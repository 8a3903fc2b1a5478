"""Files are written, listed, moved and removed while the sandbox swaps what is on the way: nothing outside is touched.

The walls are plain directories here, so that whatever leads out leads to the host's own files, where it can be seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flux.core.errors import FluxError
from flux.core.requests import CreateSandbox
from flux.engine.filesystem import removal
from flux.engine.filesystem.filesystem import Filesystem
from flux.engine.filesystem.spool import Body
from flux.failpoints import Point
from flux.testing.substrate import FakeSubstrate
from flux.trees.files import SystemFiles
from tests.engine.kit import ADMIN, Kit, started

ROUNDS = 300
SECRET = b"the host's"


class Attack:
    """A sandbox whose home the test changes from inside, and a directory of the host beside it."""

    def __init__(self, kit: Kit, outside: Path) -> None:
        self.outside = outside
        self.engine = kit.engine
        self.sandbox = started(kit.engine, CreateSandbox(template="small"))
        self.files.stat("/")
        instance = kit.engine.context.instances.running(self.sandbox.id)
        assert instance is not None
        self.home = Path(os.readlink(f"/proc/self/fd/{instance.tree_descriptor}"), "home/user")

    @property
    def files(self) -> Filesystem:
        return self.engine.filesystem(ADMIN, self.sandbox.id, "user")

    def untouched(self) -> bool:
        """Tell whether the host's directory is as it was."""
        return (self.outside / "d" / "f").read_bytes() == SECRET and sorted(
            str(path.relative_to(self.outside)) for path in self.outside.rglob("*")
        ) == ["d", "d/f"]


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "d" / "f").write_bytes(SECRET)
    template = tmp_path / "templates" / "small"
    (template / "home" / "user").mkdir(parents=True)
    (template / "etc").mkdir()
    (template / "etc" / "passwd").write_text(f"user:x:{os.geteuid()}:{os.getegid()}::/home/user:/bin/sh\n")
    kit = Kit(tmp_path, FakeSubstrate(), persistent=True, template_root=str(tmp_path / "templates"))
    yield Attack(kit, outside)
    kit.engine.close()


@contextmanager
def repeated(action: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in the background."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(OSError):
                action()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def swapping(attack: Attack) -> Callable[[], None]:
    """Return what makes ``x`` a directory with ``d/f`` and a link to the host's, by turns."""
    real, link, at = attack.home / "real", attack.home / "link", attack.home / "x"
    (real / "d").mkdir(parents=True, exist_ok=True)
    link.symlink_to(attack.outside)

    def swap() -> None:
        with suppress(OSError):
            os.rename(real, at)
        with suppress(OSError):
            (at / "d").mkdir(parents=True)
        with suppress(OSError):
            os.rename(at, real)
        with suppress(OSError):
            os.rename(link, at)
        with suppress(OSError):
            os.rename(at, link)

    return swap


def attempts(action: Callable[[], object]) -> list[object]:
    """Do something many times and return what came of it; refusals are no matter."""
    results = []
    for _ in range(ROUNDS):
        with suppress(FluxError):
            results.append(action())
    return results


def test_a_write_never_leaves(attack: Attack) -> None:
    with repeated(swapping(attack)):
        attempts(lambda: attack.files.put_file("x/d/f", Body(size=4, data=b"evil")))
    assert attack.untouched()


def test_a_read_never_leaves(attack: Attack) -> None:
    def read() -> bytes:
        with os.fdopen(attack.files.open_file("x/d/f").descriptor, "rb") as stream:
            return stream.read()

    (attack.home / "real" / "d").mkdir(parents=True)
    (attack.home / "real" / "d" / "f").write_bytes(b"inside")
    with repeated(swapping(attack)):
        assert set(attempts(read)) <= {b"inside"}


def test_removing_never_leaves(attack: Attack) -> None:
    with repeated(swapping(attack)):
        attempts(lambda: attack.files.remove("x"))
        attempts(lambda: attack.files.remove("x/d"))
    assert attack.untouched()


class SwappingFiles(SystemFiles):
    """Has a directory swapped for a link between the moment that it is seen and the moment that it is entered."""

    def __init__(self, at: Path, target: Path) -> None:
        self._at = at
        self._target = target

    def unlink(self, step: Point, directory: int, name: str) -> None:
        try:
            super().unlink(step, directory, name)
        except IsADirectoryError:
            if name == self._at.name and not self._at.is_symlink():
                self._at.rename(self._at.with_name("swapped"))
                self._at.symlink_to(self._target)
            raise


@pytest.mark.parametrize("below", ["", "tree"])
def test_removing_enters_no_link_that_takes_a_directory_s_place(attack: Attack, below: str) -> None:
    at = attack.home / below / "x"
    (at / "inside").mkdir(parents=True)
    home = os.open(attack.home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            removal.remove(SwappingFiles(at, attack.outside), home, below or "x")
    finally:
        os.close(home)
    assert attack.untouched()


def test_moving_and_making_never_leave(attack: Attack) -> None:
    (attack.home / "file").touch()
    with repeated(swapping(attack)):
        attempts(lambda: attack.files.move("file", "x/d/f"))
        attempts(lambda: attack.files.make_directory("x/new/below"))
        attempts(lambda: attack.files.compose(["x/d/f"], "x/joined"))
    assert attack.untouched()


def test_a_list_shows_nothing_outside(attack: Attack) -> None:
    with repeated(swapping(attack)):
        listed = attempts(lambda: [entry.path for entry in attack.files.entries("~", 9)])
        listed += attempts(lambda: [entry.path for entry in attack.files.entries("x", 9)])
    assert not any(path.endswith("d/f") for paths in listed for path in paths)  # type: ignore[attr-defined]  # lists


def test_removing_what_is_renamed_away_meanwhile_takes_only_what_was_named(attack: Attack) -> None:
    kept = attack.home / "kept"
    (kept / "deep").mkdir(parents=True)
    (kept / "deep" / "f").write_bytes(b"kept")
    tree = attack.home / "tree"

    def shuffle() -> None:
        os.makedirs(tree / "a" / "b", exist_ok=True)
        os.rename(tree / "a", kept / "a")
        (kept / "a" / "b").rmdir()
        (kept / "a").rmdir()

    with repeated(shuffle):
        attempts(lambda: attack.files.remove("tree"))
    assert (kept / "deep" / "f").read_bytes() == b"kept"
    assert attack.untouched()


def test_a_name_that_becomes_a_pipe_is_not_waited_for(attack: Attack) -> None:
    at = attack.home / "p"

    def swap() -> None:
        at.unlink(missing_ok=True)
        os.mkfifo(at)
        at.unlink()
        at.write_bytes(b"x")

    with repeated(swap):
        for descriptor in attempts(lambda: attack.files.open_file("p").descriptor):
            os.close(descriptor)  # type: ignore[arg-type]  # what the attempts return
        attempts(lambda: attack.files.put_file("p", Body(size=1, data=b"y")))


@pytest.mark.parametrize("name", ["/l", "/abs", "/chain", "l/../nowhere"])
def test_links_out_lead_to_the_sandbox_s_own_places(attack: Attack, name: str) -> None:
    (attack.home / "l").symlink_to("../" * 20 + str(attack.outside).lstrip("/"))
    (attack.home / "abs").symlink_to(attack.outside)
    (attack.home / "chain").symlink_to("abs")
    path = name if ".." in name else f"~{name}/d/f"
    with pytest.raises(FluxError, match="there is nothing with that name"):
        attack.files.open_file(path)
    with suppress(FluxError):
        attack.files.put_file(path, Body(size=1, data=b"y"))
    assert attack.untouched()
