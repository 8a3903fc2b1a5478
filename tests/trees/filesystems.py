"""File systems of other kinds, on loop devices of their own, gone when the tests are."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

MAKE = {
    "btrfs": ("512M", ["mkfs.btrfs", "-q"]),
    "xfs": ("512M", ["mkfs.xfs", "-q", "-m", "reflink=1"]),
    "ext4": ("256M", ["mkfs.ext4", "-q"]),
}
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


@contextmanager
def mounted(top: Path, kinds: tuple[str, ...]) -> Iterator[dict[str, Path]]:
    """Mount one file system of each kind below ``top``."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(_mounted(top, kind)) for kind in kinds}


@contextmanager
def _mounted(top: Path, kind: str) -> Iterator[Path]:
    target = top / kind
    target.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=1G", "tmpfs", str(target)]
    else:
        size, make = MAKE[kind]
        program = shutil.which(make[0], path=_PATH)
        if program is None:
            pytest.skip(f"{make[0]} is not installed: apt-get install btrfs-progs xfsprogs e2fsprogs")
        image = top / f"{kind}.image"
        subprocess.run(["truncate", "-s", size, str(image)], check=True)
        subprocess.run([program, *make[1:], str(image)], check=True, stdout=subprocess.DEVNULL)
        command = ["mount", "-o", "loop", str(image), str(target)]
    subprocess.run(command, check=True)
    try:
        yield target
    finally:
        if subprocess.run(["umount", str(target)], check=False).returncode != 0:
            # A failed test left something open: nothing may stay mounted all the same.
            subprocess.run(["umount", "--lazy", str(target)], check=True)
            raise AssertionError(f"something below {target} is still open")
