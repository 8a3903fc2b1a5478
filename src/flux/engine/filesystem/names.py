"""Paths as a sandbox's users write them, and the names that the sandbox itself gives to numbers of owners."""

from __future__ import annotations

import os
import posixpath
import stat
import threading
from collections import OrderedDict
from typing import TypeAlias

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.engine.lifecycle import users
from flux.engine.lifecycle.spots import HANDLE, Spot, resolve

_TABLE_BYTES_MAX = 1 << 20
_TABLES_MAX = 256
#: Names that are kept of all tables together: what sandboxes write there is not to fill the memory.
NAMES_MAX = 250_000
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_Version: TypeAlias = tuple[int, int, int, int, int]


def absolute(asked: str, home: str) -> str:
    """Return the path that a user means: relative ones and ``~`` are from the home, ``.`` and ``..`` are resolved.

    Raises:
        FluxError: ``invalid`` for a NUL byte, what is no text of bytes, a path too long, another user's ``~``.
    """
    if asked == "~" or asked.startswith("~/"):
        asked = f"./{asked[2:]}"
    elif asked.startswith("~"):
        raise _unusable(asked, "only one's own home is known by ~; write the other one's path")
    try:
        raw = paths.to_bytes(asked)
    except UnicodeEncodeError:
        raise _unusable(asked, "it is neither Unicode text nor bytes") from None
    if b"\0" in raw:
        raise _unusable(asked, "it holds a NUL byte")
    path = "/" + posixpath.normpath(posixpath.join(home, asked)).strip("/")
    if len(raw) > paths.PATH_BYTES_MAX or len(paths.to_bytes(path)) > paths.PATH_BYTES_MAX:
        raise _unusable(asked, f"it is longer than {paths.PATH_BYTES_MAX} bytes")
    return path


def _unusable(asked: str, why: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot use the path {printable(asked)[:200]!r}: {why}")


class Tables:
    """What ``passwd`` and ``group`` of sandboxes say, read once for each version of such a file.

    ``held``: how many names are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[_Version, dict[int, str]] = OrderedDict()
        self.held = 0

    def names(self, spot: Spot) -> dict[int, str]:
        """Return the names by number in a table of a managed sandbox; empty if there is none to read."""
        try:
            handle = resolve(spot, HANDLE)
        except (OSError, ValueError):
            return {}
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return {}
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            with self._lock:
                found = self._known.get(version)
            return self._remembered(version, _read(handle)) if found is None else found
        except OSError:
            return {}
        finally:
            os.close(handle)

    def _remembered(self, version: _Version, names: dict[int, str]) -> dict[int, str]:
        with self._lock:
            self.held += len(names) - len(self._known.pop(version, ()))
            self._known[version] = names
            while len(self._known) > _TABLES_MAX or self.held > NAMES_MAX:
                self.held -= len(self._known.popitem(last=False)[1])
        return names


def _read(handle: int) -> dict[int, str]:
    with os.fdopen(os.open(f"/proc/self/fd/{handle}", _READ), "rb") as stream:
        content = stream.read(_TABLE_BYTES_MAX).decode("utf-8", "surrogateescape")
    names: dict[int, str] = {}
    for line in content.split("\n"):
        fields = line.split(":")
        number = users.number(fields[2]) if len(fields) > 2 and fields[0] else None
        if number is not None:
            names.setdefault(number, fields[0])
    return names


_tables = Tables()


class Owners:
    """Names of a sandbox's users and groups; a number without a name is written as it is.

    ``root``: the open root of a managed sandbox; ``None`` for a bound one, whose owners are the host's.
    """

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._users: dict[int, str] | None = None
        self._groups: dict[int, str] | None = None

    def user(self, uid: int) -> str:
        """Return a user's name."""
        if self._users is None:
            self._users = self._table("/etc/passwd")
        return self._users.get(uid) or str(uid)

    def group(self, gid: int) -> str:
        """Return a group's name."""
        if self._groups is None:
            self._groups = self._table("/etc/group")
        return self._groups.get(gid) or str(gid)

    def _table(self, path: str) -> dict[int, str]:
        if self._root is None:
            return {0: "root"} if os.geteuid() == 0 else {os.geteuid(): "user"}
        return _tables.names(Spot(self._root, path, whole=True))
