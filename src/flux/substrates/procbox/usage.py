"""Counting what a sandbox uses where no cgroup counts it: from the process list."""

from __future__ import annotations

import os

from flux.ports.substrate import Usage
from flux.substrates.procbox import virtual

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _statistics() -> dict[int, list[str]]:
    """Return the fields of ``/proc/PID/stat`` from the state on, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = virtual.read(f"/proc/{name}/stat").rpartition(")")[2].split()
            if fields:  # none if it ended meanwhile
                found[int(name)] = fields
    return found


def measure(init: int) -> Usage:
    """Return what the processes below ``init`` use now; the time of those that ended counts with their parents."""
    statistics = _statistics()
    inside = {init}
    while more := {pid for pid, fields in statistics.items() if int(fields[1]) in inside} - inside:
        inside |= more
    held = [statistics[pid] for pid in inside if pid in statistics]
    ticks = sum(int(number) for fields in held for number in fields[11:15])
    return Usage(
        processes=max(len(held) - 1, 0),
        memory=sum(int(fields[21]) for fields in held) * _PAGE,
        cpu_seconds=ticks / _TICKS,
    )
