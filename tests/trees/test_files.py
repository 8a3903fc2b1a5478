"""Removing what is Flux's own, whatever flags it carries."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flux.failpoints import Point
from flux.trees.area import remove_tree
from flux.trees.beneath import DIRECTORY
from flux.trees.files import SystemFiles
from tests.trees.filesystems import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chattr")


def change_flags(flags: str, *paths: Path) -> None:
    subprocess.run(["chattr", flags, *map(str, paths)], check=True)


def flags_of(path: Path) -> str:
    return subprocess.run(["lsattr", "-d", str(path)], check=True, capture_output=True, text=True).stdout.split()[0]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_flags_do_not_keep_what_is_to_be_removed(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path, (kind,)) as places:
        top = places[kind]
        inner = top / "tree" / "inner"
        inner.mkdir(parents=True)
        for name in ("immutable", "append"):
            (inner / name).write_text("x")
        os.link(inner / "immutable", top / "elsewhere")
        os.mkfifo(inner / "fifo")
        change_flags("+a", inner / "append", top)
        change_flags("+i", inner / "immutable", inner)
        directory = os.open(top, DIRECTORY)
        try:
            remove_tree(SystemFiles(), Point.SCRATCH, directory, "tree")
        finally:
            os.close(directory)
        assert not (top / "tree").exists()
        assert "i" in flags_of(top / "elsewhere")
        assert "a" in flags_of(top)


def test_what_is_forbidden_for_another_reason_stays_so(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    directory = os.open(tmp_path, DIRECTORY)
    try:
        with pytest.raises(IsADirectoryError):
            SystemFiles().unlink(Point.SCRATCH, directory, "tree")
    finally:
        os.close(directory)
    assert (tmp_path / "tree").is_dir()
