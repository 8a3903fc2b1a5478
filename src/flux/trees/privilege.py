"""Whose rules the kernel applies to us when an overlay is mounted: those of root, or those of anybody."""

from __future__ import annotations

import os
from pathlib import Path

_ALL_IDS = b"0 0 4294967295"
_SET_GROUP, _SET_USER, _NETWORK_ADMIN, _SYSTEM_ADMIN = 6, 7, 12, 21
_NEEDED = sum(1 << number for number in (_SET_GROUP, _SET_USER, _NETWORK_ADMIN, _SYSTEM_ADMIN))


def is_privileged() -> bool:
    """Tell whether we are root of the machine itself, with what root can do.

    Root of a container's user namespace counts as anybody. Procbox decides by the same facts how it mounts.
    """
    own = Path("/proc/self")
    if os.geteuid() != 0 or b" ".join((own / "uid_map").read_bytes().split()) != _ALL_IDS:
        return False
    lines = dict(line.split(b":", 1) for line in (own / "status").read_bytes().splitlines() if b":" in line)
    return int(lines[b"CapEff"], 16) & _NEEDED == _NEEDED
