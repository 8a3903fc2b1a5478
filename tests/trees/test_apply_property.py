"""Any change of any tree: apply gives what the change made, the inverse what was there, a failure nothing at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flux.core.errors import FluxError
from flux.failpoints import armed
from flux.testing.crash import Nth, fail
from tests.trees.kit import Staging, World, differences

NAMES = ["a", "b", "a-", "é\udcff"]
MEMORY = Path("/dev/shm")
places = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
Place = tuple[str, ...]
Action = Callable[[Path], None]


def _parent(path: Path, top: Path) -> None:
    """Make the directory that holds ``path``, clearing away what is no directory."""
    for above in reversed(path.relative_to(top).parents):
        directory = top / above
        if not directory.is_dir() or directory.is_symlink():
            _clear(directory)
            directory.mkdir()


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(place: Place, content: str) -> Action:
    def action(top: Path) -> None:
        path = top.joinpath(*place)
        _parent(path, top)
        if not path.exists() or not stat.S_ISREG(path.lstat().st_mode):
            _clear(path)
        path.write_text(content)

    return action


def replace(place: Place, kind: str, content: str) -> Action:
    def action(top: Path) -> None:
        path = top.joinpath(*place)
        _parent(path, top)
        _clear(path)
        if kind == "file":
            path.write_text(content)
        elif kind == "directory":
            path.mkdir()
        elif kind == "symlink":
            path.symlink_to(content[:20] or "x")
        else:
            os.mkfifo(path)

    return action


def remove(place: Place) -> Action:
    return lambda top: _clear(top.joinpath(*place)) if os.path.lexists(top.joinpath(*place)) else None


def move(place: Place, to: Place) -> Action:
    def action(top: Path) -> None:
        source, target = top.joinpath(*place), top.joinpath(*to)
        if not os.path.lexists(source) or _nested(place, to):
            return
        _parent(target, top)
        if os.path.lexists(source):
            _clear(target)
            source.rename(target)

    return action


def link(place: Place, to: Place) -> Action:
    def action(top: Path) -> None:
        source, target = top.joinpath(*place), top.joinpath(*to)
        if not os.path.lexists(source) or (source.is_dir() and not source.is_symlink()) or _nested(place, to):
            return
        _parent(target, top)
        if os.path.lexists(source) and not (
            os.path.lexists(target) and os.path.samestat(source.lstat(), target.lstat())
        ):
            _clear(target)
            os.link(source, target, follow_symlinks=False)

    return action


def _nested(one: Place, other: Place) -> bool:
    """Tell whether one of two places lies in the other."""
    return one[: len(other)] == other or other[: len(one)] == one


def chmod(place: Place, mode: int) -> Action:
    def action(top: Path) -> None:
        path = top.joinpath(*place)
        if os.path.lexists(path) and not path.is_symlink():
            path.chmod(mode)

    return action


def set_xattr(place: Place, value: str) -> Action:
    def action(top: Path) -> None:
        path = top.joinpath(*place)
        if not os.path.lexists(path) or path.is_symlink() or not (path.is_file() or path.is_dir()):
            return
        os.setxattr(path, "user.k", value.encode())

    return action


contents = st.sampled_from(["", "one", "two", "three", "1" * 5000])
actions = st.one_of(
    st.builds(write, places, contents),
    st.builds(replace, places, st.sampled_from(["file", "directory", "symlink", "fifo"]), contents),
    st.builds(remove, places),
    st.builds(move, places, places),
    st.builds(link, places, places),
    st.builds(chmod, places, st.sampled_from([0o600, 0o755, 0o2750, 0o4711, 0o000, 0o555])),
    st.builds(set_xattr, places, st.sampled_from(["", "v"])),
)
histories = st.lists(actions, max_size=12)


def _perform(history: list[Action]) -> Callable[[Path], None]:
    def perform(top: Path) -> None:
        for action in history:
            try:
                action(top)
            except (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError):
                continue

    return perform


def _speculate(home: str, before: list[Action], change: list[Action]) -> Staging:
    world = World(Path(home))
    _perform(before)(world.workspace)
    return world.speculate(_perform(change))


def _expected(staging: Staging) -> dict[str, tuple[object, ...]]:
    """A time that changed alone is no change, and is not carried."""
    time, changed = 6, {change.location for change in staging.changes}
    before = staging.world.look()
    return {
        path: facts
        if path in changed or path not in before
        else (*facts[:time], before[path][time], *facts[time + 1 :])
        for path, facts in staging.expected.items()
    }


pytestmark = pytest.mark.root
examples = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@examples
@given(histories, histories, st.sampled_from(["all", "touched"]))
def test_there_and_back(before: list[Action], change: list[Action], scope: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as home:
        staging = _speculate(home, before, change)
        staging.scope = scope
        original, expected = staging.world.look(), _expected(staging)
        staging.apply()
        assert differences(staging.world.look(), expected) == {}
        inverse = staging.inverse()
        inverse.scope = scope
        inverse.apply()
        shutil.rmtree(staging.path)
        assert differences(staging.world.look(), original) == {}
        os.close(staging.world.root)


@examples
@given(histories, histories, st.integers(1, 80))
def test_a_failure_anywhere_changes_nothing(before: list[Action], change: list[Action], number: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as home:
        staging = _speculate(home, before, change)
        original, expected = staging.world.look(directory_times=True), _expected(staging)
        committed: list[bool] = []
        try:
            with armed(Nth(number, fail(errno.EIO))):
                staging.apply(commit=lambda: committed.append(True))
        except (FluxError, OSError):
            assert not committed
            shutil.rmtree(staging.path)
            assert differences(staging.world.look(directory_times=True), original) == {}
        else:
            staging.recover(committed=True)
            assert differences(staging.world.look(), expected) == {}
        os.close(staging.world.root)
