"""Every engine reports exactly what the bare command does, on every file system that it is made for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.requests import CopyEngine
from tests.trees.arena import Arena, prove
from tests.trees.cases import CASES
from tests.trees.filesystems import mounted

PLACES: dict[str, tuple[str, CopyEngine]] = {
    "overlay": ("", "overlay"),
    "copy": ("", "copy"),
    "btrfs-snapshot": ("btrfs", "snapshot"),
    "btrfs-overlay": ("btrfs", "overlay"),
    "btrfs-reflink": ("btrfs", "reflink"),
    "xfs-reflink": ("xfs", "reflink"),
    "xfs-overlay": ("xfs", "overlay"),
    "tmpfs-overlay": ("tmpfs", "overlay"),
    "tmpfs-copy": ("tmpfs", "copy"),
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts overlays and file systems as root")


@pytest.fixture(scope="module")
def filesystems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with mounted(tmp_path_factory.mktemp("mounts"), ("btrfs", "xfs", "tmpfs")) as places:
        yield places


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, filesystems: dict[str, Path]
) -> Iterator[tuple[Arena, CopyEngine]]:
    kind, engine = PLACES[request.param]
    top = filesystems[kind] / tmp_path.name if kind else tmp_path / "arena"
    top.mkdir()
    if kind == "btrfs":
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(top / "workspace")], check=True)
    yield Arena(top), engine
    if kind:
        subprocess.run(["btrfs", "-q", "subvolume", "delete", str(top / "workspace")], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", str(top)], check=True)


@pytest.mark.parametrize("name", CASES)
def test_a_capture_is_what_the_bare_command_does(place: tuple[Arena, CopyEngine], name: str) -> None:
    arena, engine = place
    setup, command = CASES[name]
    arena.shell(setup)
    if engine == "reflink":
        arena.shell("echo content to share >shared")
    prove(arena, command, engine)
