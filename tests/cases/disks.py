"""File systems of the cases' own, on images in memory where that can be; gone when the tests are."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
MAKE = {
    "btrfs": ("512M", ["mkfs.btrfs", "-q"]),
    "xfs": ("512M", ["mkfs.xfs", "-q", "-m", "reflink=1"]),
    "ext4": ("1G", ["mkfs.ext4", "-q", "-N", "262144"]),
}
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def missing(kind: str) -> str | None:
    """Return why a file system of that kind cannot be had here."""
    if os.geteuid() != 0:
        return "only root may mount: run the tests with sudo"
    if kind != "tmpfs" and shutil.which(MAKE[kind][1][0], path=PATH) is None:
        return f"{MAKE[kind][1][0]} is not installed: apt-get install btrfs-progs xfsprogs e2fsprogs"
    if kind != "tmpfs" and not Path("/dev/loop-control").exists():
        return "there are no loop devices here: modprobe loop"
    return None


@contextmanager
def mounted(kind: str, size: str | None = None) -> Iterator[Path]:
    """Mount a new file system."""
    with tempfile.TemporaryDirectory(prefix="flux-disk-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        top = Path(name)
        target = top / "disk"
        target.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={size or '1G'}", "tmpfs", target]
        else:
            image = top / "image"
            subprocess.run(["truncate", "-s", size or MAKE[kind][0], image], check=True)
            subprocess.run([*MAKE[kind][1], image], check=True, stdout=subprocess.DEVNULL, env={"PATH": PATH})
            command = ["mount", "-o", "loop", image, target]
        subprocess.run(command, check=True)
        try:
            yield target
        finally:
            left = subprocess.run(["umount", target], check=False).returncode
            if left != 0:
                # A failed test left something open: nothing may stay mounted all the same.
                subprocess.run(["umount", "--lazy", target], check=True)
        assert left == 0, f"something below {target} was still open"


@contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """Show a directory at another place."""
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)
