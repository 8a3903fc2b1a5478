"""What the daemon needs at its peak, and what an idle sandbox costs beyond its own processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from benches import measure
from benches.service import Daemon, daemon

OUTPUT = "head -c 300000000 /dev/zero"
LARGEST = "for n in 1 2 3 4; do head -c 16777216 /dev/urandom > big$n; done"
LARGE_TREE = 100_000
SANDBOXES = 10


def _field(file: Path, name: str) -> float:
    match = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0


def resident(pid: int) -> float:
    """Return a process's memory in MiB."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def peak(pid: int) -> float:
    """Return the most memory that a process had since ``forget_peak``, in MiB."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def forget_peak(pid: int) -> None:
    """Let the peak begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def proportional(pid: int) -> float:
    """Return a process's memory in MiB, pages shared with others counted in part (PSS)."""
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = [int(word) for word in (task / "children").read_text().split()]
        found += children + [below for child in children for below in descendants(child)]
    return found


def _growth(files: int, limit: float, commands: tuple[str, ...]) -> measure.Row:
    with measure.folder() as place, daemon(place) as flux:
        sandbox = flux.sandbox(measure.make_tree(place / "tree", files))
        idle = resident(flux.pid)
        forget_peak(flux.pid)
        for command in commands:
            flux.speculate(sandbox, command)
        most = peak(flux.pid)
    what = "300 MB of output and a 64 MiB changeset" if len(commands) > 1 else "one speculation"
    return measure.Row(f"daemon at {what}, {files} files; against idle", most, idle, "MiB", "more", limit)


def _idle_sandboxes() -> measure.Row:
    with measure.folder() as place, daemon(place) as flux:
        first = _idle(flux, place, "first")
        before = proportional(flux.pid) + sum(map(proportional, descendants(flux.pid)))
        for number in range(SANDBOXES):
            _idle(flux, place, f"tree{number}")
        after = proportional(flux.pid) + sum(map(proportional, descendants(flux.pid)))
        running = len(descendants(flux.pid))
    if not first or running < SANDBOXES:
        raise RuntimeError(f"only {running} processes run for {SANDBOXES} sandboxes")
    each = (after - before) / SANDBOXES
    return measure.Row("memory (PSS) of an idle sandbox beyond its own processes", each, 0, "MiB", "absolute", 1.5)


def _idle(flux: Daemon, place: Path, name: str) -> str:
    (place / name).mkdir()
    sandbox = flux.sandbox(place / name)
    flux.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"command": "true"})
    return sandbox


def run() -> list[measure.Row]:
    """Return the three rows; reading another process's memory needs its owner or root."""
    if os.geteuid() != 0:
        print("memory: not measured, it needs root")
        return []
    return [
        _growth(100, 60, (OUTPUT, LARGEST)),
        _growth(LARGE_TREE, 120, ("echo x >> d0000/f000001",)),
        _idle_sandboxes(),
    ]
