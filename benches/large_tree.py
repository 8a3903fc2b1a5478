"""What a speculation costs on large trees when it touches three files."""

from __future__ import annotations

import os
import subprocess

from benches import measure
from benches.service import daemon

TOUCH = "echo x >> d0000/f000001; echo y >> d0003/f000301; echo z >> d0007/f000707"


def walk(directory: str) -> int:
    """Stat every entry below ``directory``, as barely as Python can."""
    count = 0
    with os.scandir(directory) as listing:
        for entry in listing:
            count += entry.stat(follow_symlinks=False).st_size >= 0
            if entry.is_dir(follow_symlinks=False):
                count += walk(entry.path)
    return count


def against_a_copy(files: int = 10_000, rounds: int = 5) -> list[measure.Row]:
    """Compare with copying the tree."""
    with measure.folder() as place, daemon(place) as flux:
        tree = measure.make_tree(place / "tree", files)
        sandbox = flux.sandbox(tree)
        flux.speculate(sandbox, TOUCH)
        numbers = iter(range(rounds))

        def copy() -> None:
            subprocess.run(["cp", "-a", str(tree), str(place / f"copy{next(numbers)}")], check=True)

        ours, bare = measure.in_turn(rounds, lambda: flux.speculate(sandbox, TOUCH), copy)
    return [measure.Row(f"speculate touching 3 of {files} files; against cp -a", ours, bare, "ms", "ratio", 0.25)]


def against_a_walk(files: int = 100_000, rounds: int = 5) -> list[measure.Row]:
    """Compare with one walk over the tree, everything in the page cache."""
    with measure.folder() as place, daemon(place) as flux:
        tree = measure.make_tree(place / "tree", files)
        sandbox = flux.sandbox(tree)
        flux.speculate(sandbox, TOUCH)
        ours, bare = measure.in_turn(rounds, lambda: flux.speculate(sandbox, TOUCH), lambda: walk(str(tree)))
    return [
        measure.Row(f"speculate touching 3 of {files} files, warm; against a stat walk", ours, bare, "ms", "ratio", 4)
    ]


def run() -> list[measure.Row]:
    """Return both rows."""
    return against_a_copy() + against_a_walk()
