"""The same without privileges: what the owner's own modes forbid is widened for the moment, and put back."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.changeset import Change, Entry
from flux.core.errors import Code, FluxError
from flux.core.manifest import parse
from flux.failpoints import Action
from flux.testing.crash import Nth, count, die, in_child
from tests.trees.kit import Staging, World, differences

NOBODY = 65534
pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")]

SETUP = (
    "umask 022; mkdir -p closed/in gone/deep typed dir; echo a >closed/f; echo b >closed/in/g; echo c >gone/deep/h; "
    "echo d >typed/i; echo e >dir/j; chmod 555 closed/in closed gone/deep gone typed"
)
CHANGE = (
    "umask 022; chmod 755 closed closed/in gone gone/deep typed; echo new >closed/f; rm closed/in/g; "
    "echo k >closed/in/k; chmod 555 closed/in closed; rm -r gone; rm -r typed; echo file >typed; rm -r dir; "
    "echo now >dir; mkdir -p fresh/ro; echo l >fresh/ro/l; chmod 555 fresh/ro fresh; echo m >secret; chmod 400 secret"
)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that belongs to nobody and that nobody can reach."""
    name = tempfile.mkdtemp(prefix="flux-unprivileged-")
    os.chown(name, NOBODY, NOBODY)
    yield Path(name)
    shutil.rmtree(name)


def shell(text: str, top: Path) -> None:
    subprocess.run(["bash", "-ec", text], cwd=top, check=True)


def as_nobody(action: Callable[[], object], effect: Action | None = None) -> int:
    """Run ``action`` in a child that has given up every privilege."""

    def dropped() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        action()

    return in_child(dropped, effect)


def test_round_trip(home: Path) -> None:
    def everything() -> None:
        world = World(home)
        shell(SETUP, world.workspace)
        before = world.look(directory_times=True)
        staging = world.speculate(lambda run: shell(CHANGE, run))
        staging.apply()
        assert differences(_plain(world.look()), _plain(staging.expected)) == {}
        inverse = staging.inverse()
        inverse.apply()
        shell("chmod -R u+w changesets/cs1/trash; rm -r changesets/cs1/trash", home)
        assert differences(_plain(world.look()), _plain(before)) == {}

    assert as_nobody(everything) == 0


def _plain(facts: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Leave out the times of directories."""
    return {path: (*fact[:6], None, *fact[7:]) if str(fact[0]) == "16384" else fact for path, fact in facts.items()}


def test_killed_at_every_call(home: Path) -> None:
    def make(number: int) -> Staging:
        (home / str(number)).mkdir()
        world = World(home / str(number))
        shell(SETUP, world.workspace)
        return world.speculate(lambda run: shell(CHANGE, run))

    def fill() -> None:
        staging = make(0)
        (home / "count").write_text(str(count(staging.apply)))

    assert as_nobody(fill) == 0
    for number in range(1, int((home / "count").read_text()) + 1, 2):

        def attempt(number: int = number) -> None:
            staging = make(number)
            before = staging.world.look(directory_times=True)
            marker = staging.path / "committed"
            ended = in_child(lambda: staging.apply(commit=marker.touch), Nth(number, die))
            assert ended == -signal.SIGKILL, ended
            recovery = staging.recover(committed=marker.exists())
            assert not recovery.problems, recovery
            for blob in (staging.path / "blobs").iterdir():
                blob.unlink()
            if marker.exists():
                assert differences(_plain(staging.world.look()), _plain(staging.expected)) == {}
            else:
                assert differences(staging.world.look(directory_times=True), before) == {}

        assert as_nobody(attempt) == 0, number


def test_closed_directories_are_opened_again(home: Path) -> None:
    """What was amended below a directory that nobody may enter any more is taken back, the directory first."""

    def everything() -> None:
        world = World(home)
        shell("mkdir -p a/b; echo x >a/b/f; setfattr -n user.k -v 1 a/b", world.workspace)
        before = world.look(directory_times=True)
        staging = world.speculate(lambda run: shell("chmod 600 a/b/f; setfattr -n user.k -v 2 a/b", run))
        closed = world.changeset("cs2")
        closed.base = staging.base
        known = {change.location: change for change in staging.changes}
        closed.changes = [known["/a/b/f"], _closing(staging, "/a"), _closing(staging, "/a/b")]
        try:
            closed.apply(commit=_fail)
        except FluxError as error:
            assert error.code is Code.UNAVAILABLE, error
        else:
            raise AssertionError("it was applied")
        assert differences(world.look(directory_times=True), before) == {}

    assert as_nobody(everything) == 0


def _fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _closing(staging: Staging, path: str) -> Change:
    before = Entry.of(parse(staging.base[path]))
    return Change(path=path, before=before, after=msgspec.structs.replace(before, mode="0000"), attributes=("mode",))


def test_an_owner_that_cannot_be_given_is_taken_back(home: Path) -> None:
    def everything() -> None:
        world = World(home)
        shell("echo a >f; mkdir d", world.workspace)
        before = world.look(directory_times=True)
        staging = world.speculate(lambda run: shell("echo b >f; echo c >d/g", run))
        foreign = next(change for change in staging.changes if change.location == "/d/g")
        index = staging.changes.index(foreign)
        assert foreign.after is not None
        after = msgspec.structs.replace(foreign.after, uid=12345)
        staging.changes[index] = msgspec.structs.replace(foreign, after=after)
        try:
            staging.apply()
        except FluxError as error:
            assert (error.code, error.details["changeset"]) == (Code.UNAVAILABLE, "failed")
        else:
            raise AssertionError("it was applied")
        assert differences(world.look(directory_times=True), before) == {}

    assert as_nobody(everything) == 0
