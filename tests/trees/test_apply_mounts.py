"""Applying to workspaces on other file systems, and to one that is itself an overlay."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.trees import journal
from tests.trees.kit import World, differences
from tests.trees.test_apply import CASES, shell

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")]

SOME = [
    "add", "delete tree", "directory renamed and changed", "file moved", "directory to file", "modes", "hard links",
    "file to directory", "write through a link", "link broken", "tree over tree", "root of the workspace", "hole",
]  # fmt: skip


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


@pytest.fixture
def merged(memory: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The mounted workspace of a managed sandbox: all that is in it at first lies in the lower layer."""
    home = memory / "home"
    for name in ("lower", "upper", "work", "workspace"):
        (home / name).mkdir(parents=True)
    shell("umask 022; " + CASES[request.node.callspec.params["name"]][0])(home / "lower")
    layers = f"lowerdir={home}/lower,upperdir={home}/upper,workdir={home}/work"
    mount("-t", "overlay", "overlay", "-o", f"{layers},index=on,redirect_dir=on", str(home / "workspace"))
    yield home
    subprocess.run(["umount", "-l", str(home / "workspace")], check=True)


@pytest.mark.parametrize("name", SOME)
def test_a_managed_workspace(merged: Path, name: str, tmp_path: Path) -> None:
    world = World(merged)
    before = world.look()
    staging = world.speculate(shell("umask 022; " + CASES[name][1]), state=tmp_path)
    try:
        staging.apply()
        assert differences(world.look(), staging.expected) == {}
        staging.inverse().apply()
        assert differences(world.look(), before) == {}
    finally:
        os.close(world.root)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_keeps_nothing_from_coming_back(small: Path) -> None:
    """The journal says that the tree is back before anything in the area is removed, without a byte of free space."""
    world = World(small)
    shell("mkdir d; echo a >d/f; echo b >g")(world.workspace)
    before = world.look(directory_times=True)
    staging = world.speculate(shell("rm -r d; echo c >>g; mkdir n; echo d >n/e"))
    said: list[bool] = []

    def fill(point: Point) -> None:
        filler = world.home / "filler"
        if point is Point.APPLY_INSTALL and not filler.exists():
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        if point is Point.APPLY_COMMIT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if point is Point.ROLLBACK:
            said.append(_says_undone(staging.path))

    with pytest.raises(FluxError) as caught, armed(fill):
        staging.apply()
    assert caught.value.code is Code.EXHAUSTED
    assert said[0] is False
    assert said[-1] is True
    assert differences(world.look(directory_times=True), before) == {}
    os.utime(world.workspace, ns=(5, 5))
    assert staging.recover().outcome == "rolled_back"
    assert world.workspace.stat().st_mtime_ns == 5, "what was cleared once is left alone"
    os.close(world.root)


def _says_undone(changeset: Path) -> bool:
    directory = os.open(changeset, os.O_RDONLY)
    try:
        record = journal.read(directory)
    finally:
        os.close(directory)
    return record is not None and record.undone is not None


@pytest.fixture(params=["btrfs", "xfs", "ext4", "tmpfs"])
def formatted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A fresh file system of each kind."""
    kind, place = request.param, tmp_path / "mounted"
    place.mkdir()
    if kind == "tmpfs":
        mount("-t", "tmpfs", "tmpfs", str(place))
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(400 * 2**20)
        tool = Path("/usr/sbin") / f"mkfs.{kind}"
        if not tool.exists():
            pytest.skip(f"needs mkfs.{kind}")
        subprocess.run([tool, "-q", str(image)], check=True)
        mount("-o", "loop", str(image), str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_every_file_system(formatted: Path) -> None:
    for name in SOME:
        home = formatted / name
        home.mkdir()
        world = World(home)
        shell("umask 022; " + CASES[name][0])(world.workspace)
        before = world.look()
        staging = world.speculate(shell("umask 022; " + CASES[name][1]))
        staging.apply()
        assert differences(world.look(), staging.expected) == {}, name
        staging.inverse().apply()
        subprocess.run(["rm", "-rf", str(staging.path)], check=True)
        assert differences(world.look(), before) == {}, name
        os.close(world.root)
