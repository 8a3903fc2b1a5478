"""What this process may do and what this machine has; read once, and taken by ``plan`` as a value."""

from __future__ import annotations

import errno
import os

import msgspec

from flux.substrates.procbox import virtual

_CAP_SYS_ADMIN, _CAP_SETUID, _CAP_SETGID, _CAP_NET_ADMIN = 21, 7, 6, 12
_NEEDED = sum(1 << number for number in (_CAP_SYS_ADMIN, _CAP_SETUID, _CAP_SETGID, _CAP_NET_ADMIN))
TUN = "/dev/net/tun"
_ALL_IDS = ["0", "0", "4294967295"]
#: The host's system directories, as far as it has them; each is shown read-only, or is a link into another.
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """``privileged``: may map every id. ``initial``: in the machine's first user namespace. ``system``: top-level
    directories with the target of those that are links."""

    privileged: bool
    initial: bool
    uid: int
    gid: int
    system: tuple[tuple[str, str | None], ...]


def read_host() -> Host:
    """Look at this process and this machine."""
    return Host(
        privileged=os.geteuid() == 0 and _effective_capabilities() & _NEEDED == _NEEDED,
        initial=virtual.read("/proc/self/uid_map").split() == _ALL_IDS,
        uid=os.geteuid(),
        gid=os.getegid(),
        system=tuple((name, _link(f"/{name}")) for name in SYSTEM if os.path.isdir(f"/{name}")),
    )


def describe(number: int) -> str:
    """Return an error number in words."""
    return os.strerror(number) if number else "it ended without a word"


def is_shortage(number: int) -> bool:
    """Tell whether an error number says that something ran out, so that a later try may succeed."""
    return number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


def _link(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _effective_capabilities() -> int:
    for line in virtual.read("/proc/self/status").split("\n"):
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
