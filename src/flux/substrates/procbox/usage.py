"""Counting what a sandbox uses where no cgroup counts it: from the process list."""

from __future__ import annotations

import os

from flux.ports.substrate import Usage
from flux.substrates.procbox import virtual

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _statistics() -> dict[int, tuple[str, list[str]]]:
    """Return name and the fields of ``/proc/PID/stat`` from the state on, by pid."""
    found = {}
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        head, _, tail = virtual.read(f"/proc/{pid}/stat").rpartition(")")
        if tail:  # nothing if it ended meanwhile
            found[int(pid)] = (head.partition("(")[2], tail.split())
    return found


def measure(init: int) -> Usage:
    """Return what the processes below ``init`` use now; the time of those that ended counts with their parents."""
    statistics = _statistics()
    inside = {init}
    while more := {pid for pid, (_, fields) in statistics.items() if int(fields[1]) in inside} - inside:
        inside |= more
    held = [statistics[pid] for pid in inside if pid in statistics]
    own = statistics.get(init, ("", []))[0]
    ticks = sum(int(number) for _, fields in held for number in fields[11:15])
    return Usage(
        processes=sum(name != own for name, _ in held),  # neither the init nor the keepers of commands
        memory=sum(int(fields[21]) for _, fields in held) * _PAGE,
        cpu_seconds=ticks / _TICKS,
    )
