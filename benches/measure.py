"""What all comparisons share: timing in turn, medians, trees to work on, and a row of the result."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FILES_IN_DIRECTORY = 100
MIB = 1024 * 1024


@dataclass(frozen=True)
class Row:
    """One comparison: ``value`` against ``reference`` in ``unit``; ``kind`` says how ``limit`` bounds it."""

    name: str
    value: float
    reference: float
    unit: str
    kind: Literal["ratio", "more", "absolute"]
    limit: float

    @property
    def score(self) -> float:
        """The figure that the limit is about."""
        if self.kind == "ratio":
            return self.value / self.reference
        return self.value - self.reference if self.kind == "more" else self.value

    @property
    def kept(self) -> bool:
        """Whether the target was met."""
        return self.score <= self.limit


def timed(action: Callable[[], object]) -> float:
    """Return how long ``action`` took, in milliseconds."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def in_turn(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Return the median of each action in milliseconds; they take turns, so that a busy moment hits all of them."""
    samples: list[list[float]] = [[] for _ in actions]
    for number in range(rounds):
        order = list(enumerate(actions))
        for index, action in order if number % 2 == 0 else reversed(order):
            samples[index].append(timed(action))
    return [statistics.median(sample) for sample in samples]


@contextmanager
def folder() -> Iterator[Path]:
    """Give a directory on a real disk (``/tmp`` may be memory), and remove it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="flux-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make_tree(place: Path, files: int, content: bytes = b"0123456789abcdef") -> Path:
    """Write ``files`` small files, a hundred in a directory, and return the tree's root."""
    for number in range(files):
        directory = place / f"d{number // FILES_IN_DIRECTORY:04d}"
        if number % FILES_IN_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number:06d}").write_bytes(content)
    sync_filesystem(place)
    return place


def sync_filesystem(place: Path) -> None:
    """Make everything written to the file system of ``place`` durable."""
    subprocess.run(["sync", "--file-system", str(place)], check=True)


def bare(command: str, place: Path) -> None:
    """Run a shell command without any sandbox."""
    subprocess.run(["sh", "-c", command], cwd=place, check=True, stdout=subprocess.DEVNULL)
