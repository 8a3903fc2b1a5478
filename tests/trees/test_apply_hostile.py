"""Somebody swaps directories for links while an apply runs: nothing outside the workspace is ever written or moved."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.trees import _native
from flux.trees.beneath import open_beneath, open_by_component
from tests.trees.kit import Facts, Staging, World, differences, look

ROUNDS = 60


def shell(text: str, top: Path) -> None:
    subprocess.run(["bash", "-ec", text], cwd=top, check=True)


@contextmanager
def swapping(directory: Path, one: str, other: str) -> Iterator[None]:
    """Exchange two names again and again in a process of its own."""
    child = os.fork()
    if child == 0:
        descriptor = os.open(directory, os.O_RDONLY)
        while True:
            try:
                _native.renameat2(descriptor, one, descriptor, other, _native.RENAME_EXCHANGE)
            except OSError:
                continue
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Trap:
    """A workspace whose directory ``d`` is exchanged with a link to a directory outside."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.world = World(home)
        self.outside = home / "outside"
        self.outside.mkdir()
        shell(
            "mkdir -p d/sub/gone; echo one >d/sub/f; echo two >d/sub/g; echo three >d/sub/gone/x", self.world.workspace
        )
        shell("mkdir -p sub/gone; echo ours >sub/f; echo ours >sub/g; echo ours >sub/gone/x", self.outside)
        self.before = look(self.outside, directory_times=True)
        self.staging: Staging = self.world.speculate(
            lambda run: shell(
                "echo new >d/sub/new; echo changed >d/sub/f; rm -r d/sub/gone; chmod 600 d/sub/g; mkdir d/sub/n; "
                "echo in >d/sub/n/in; chmod 700 d/sub",
                run,
            )
        )
        os.symlink(self.outside, self.world.workspace / "trap")

    def spring(self, action: Callable[[], object]) -> None:
        """Run ``action`` while the swap goes on."""
        with swapping(self.world.workspace, "d", "trap"):
            action()

    def put_back(self) -> None:
        """Give the directory its own name again."""
        one, other = self.world.workspace / "d", self.world.workspace / "trap"
        if one.is_symlink():
            one.unlink()
            other.rename(one)

    def look_inside(self) -> Facts:
        """Return the facts of the directory."""
        return look(self.world.workspace / "d")

    def is_sprung(self) -> bool:
        """Tell whether anything outside was touched."""
        return look(self.outside, directory_times=True) != self.before


def test_nothing_outside_is_written(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(ROUNDS):
        trap = Trap(tmp_path / str(number))
        trap.staging.scope = "touched"
        inside = trap.look_inside()

        def attempt(trap: Trap = trap) -> None:
            try:
                trap.staging.apply()
            except FluxError as error:
                outcomes.add(error.code)
            else:
                outcomes.add("applied")

        trap.spring(attempt)
        assert not trap.is_sprung()
        trap.put_back()
        recovery = trap.staging.recover(committed=(trap.staging.path / "trash").exists())
        assert not trap.is_sprung()
        if recovery.outcome == "committed":
            assert (trap.world.workspace / "d/sub/new").read_text() == "new\n"
        else:
            assert not recovery.problems
            assert differences(trap.look_inside(), inside) == {}
    assert outcomes <= {Code.CONFLICT, Code.UNKNOWN_OUTCOME, Code.UNAVAILABLE, "applied"}
    assert Code.CONFLICT in outcomes, outcomes


def test_the_trap_catches_whoever_walks_by_path(tmp_path: Path) -> None:
    trap = Trap(tmp_path / "trap")

    def walk_by_path() -> None:
        number = 0
        while not trap.is_sprung():
            number += 1
            (trap.world.workspace / "d/sub" / f"naive{number}").touch()

    trap.spring(walk_by_path)
    assert trap.is_sprung()


@pytest.mark.parametrize("opened", [open_beneath, open_by_component])
@pytest.mark.parametrize("path", ["/link/f", "/up/f", "/absolute/f", "/mount/f", "/d/../../outside/f"])
def test_no_way_leads_out(tmp_path: Path, opened: Callable[[int, str, int], int], path: str, memory: Path) -> None:
    top = tmp_path / "top"
    shell("mkdir -p top/d top/mount outside; echo x >outside/f; echo x >top/d/f", tmp_path)
    os.symlink("d", top / "link")
    os.symlink("../outside", top / "up")
    os.symlink(tmp_path / "outside", top / "absolute")
    root = os.open(top, os.O_RDONLY)
    assert os.close(opened(root, "/d/f", os.O_RDONLY)) is None
    if path == "/mount/f":
        subprocess.run(["mount", "--bind", str(tmp_path / "outside"), str(top / "mount")], check=True)
    try:
        with pytest.raises(OSError, match=r"(links|directory|cross-device)"):
            opened(root, path, os.O_RDONLY)
    finally:
        os.close(root)
        if path == "/mount/f":
            subprocess.run(["umount", "-l", str(top / "mount")], check=True)


@pytest.mark.root
def test_a_mount_inside_a_directory_that_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    shell("mkdir -p d/mount e; echo x >d/f; echo y >e/y", world.workspace)
    staging = world.speculate(lambda run: shell("rm -r d", run))
    staging.scope = "touched"
    subprocess.run(["mount", "--bind", str(world.workspace / "e"), str(world.workspace / "d/mount")], check=True)
    try:
        with pytest.raises(FluxError) as caught:
            staging.apply()
        assert caught.value.code is Code.CONFLICT
        assert (world.workspace / "d/mount/y").read_text() == "y\n"
    finally:
        subprocess.run(["umount", str(world.workspace / "d/mount")], check=True)


def test_devices_and_pipes_are_never_opened(tmp_path: Path) -> None:
    """A pipe in place of a file must neither block the apply nor be emptied by it."""
    world = World(tmp_path)
    shell("echo one >f; mkfifo p", world.workspace)
    staging = world.speculate(lambda run: shell("echo two >f; rm p", run))
    shell("rm f; mkfifo f", world.workspace)
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert caught.value.details["conflicts"][0]["reason"] == "type"
