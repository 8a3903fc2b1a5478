"""The process that tries an overlay out: ``python -m flux.trees.overlay_trial ROOT DIRECTORY``.

It writes on the standard output what an overlay cannot do here; nothing if it does everything that a workspace needs.
It mounts in a namespace of its own, so nothing stays mounted whatever happens to it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flux.failpoints import Point
from flux.trees import _native
from flux.trees.beneath import DIRECTORY
from flux.trees.files import SystemFiles
from flux.trees.privilege import is_privileged

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
_STEP = Point.SCRATCH
Result = TypeVar("Result")

_library = ctypes.CDLL(None, use_errno=True)


class Unfit(Exception):
    """An overlay falls short here; the text says in what."""


def main() -> int:
    """Try everything; print the first shortcoming."""
    root, directory = None if sys.argv[1] == "-" else int(sys.argv[1]), sys.argv[2]
    try:
        Trial(directory).run(root)
    except Unfit as shortcoming:
        sys.stdout.write(f"{shortcoming}\n")
    return 0


class Trial:
    """One trial in one directory."""

    def __init__(self, directory: str) -> None:
        self._files = SystemFiles()
        self._root = is_privileged()
        self._top = directory

    def run(self, root: int | None) -> None:
        """Raise ``Unfit`` with the first shortcoming."""
        here = os.open(self._top, DIRECTORY)
        for name in ("real", "real-work", "lower", "upper", "work", "merged"):
            self._files.make_directory(_STEP, here, name)
        self._fill(os.open("lower", DIRECTORY, dir_fd=here))
        path = None if root is None else os.readlink(f"/proc/self/fd/{root}")
        self._enter_namespace()
        if path is not None:
            self._mount(path, "real", "real-work")
            self._check_options()
            _check(_library.umount2(self._path("merged"), _MNT_DETACH), "unmounting an overlay")
        self._mount(os.path.join(self._top, "lower"), "upper", "work")
        self._merged(self._behave)

    def _path(self, name: str) -> bytes:
        return os.fsencode(os.path.join(self._top, name))

    def _merged(self, use: Callable[[int], Result]) -> Result:
        descriptor = os.open(self._path("merged"), DIRECTORY)
        try:
            return use(descriptor)
        finally:
            os.close(descriptor)

    def _enter_namespace(self) -> None:
        uid, gid = os.geteuid(), os.getegid()
        _check(_library.unshare(_CLONE_NEWNS | (0 if self._root else _CLONE_NEWUSER)), "a mount namespace")
        if not self._root:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
                self._files.write(_STEP, descriptor, text.encode())
                os.close(descriptor)
        _check(_library.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None), "a private mount namespace")

    def _mount(self, lower: str, upper: str, work: str) -> None:
        options = "index=on,redirect_dir=on" if self._root else "userxattr"
        # Through descriptors, as the names of directories may hold what separates options.
        held = [os.open(path, DIRECTORY) for path in (lower, self._path(upper), self._path(work))]
        names = zip(("lowerdir", "upperdir", "workdir"), held, strict=True)
        text = ",".join([options, "metacopy=off,xino=auto", *(f"{key}=/proc/self/fd/{at}" for key, at in names)])
        done = _library.mount(b"overlay", self._path("merged"), b"overlay", ctypes.c_ulong(0), text.encode())
        for descriptor in held:
            os.close(descriptor)
        _check(done, "an overlay over this workspace")

    def _check_options(self) -> None:
        """The kernel turns options off where the file systems do not support them, and only its log says why."""
        mount = b"%d" % self._merged(_native.mount_id)
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
        options = next(line.rsplit(b" ", 1)[1].split(b",") for line in lines if line.split(b" ")[0] == mount)
        if b"ro" in options:
            raise Unfit("the file system of the state directory cannot take an overlay's writable layer")
        for wanted in (b"index=on", b"redirect_dir=on") if self._root else ():
            if wanted not in options:
                raise Unfit(f"the file systems do not support {wanted.decode()}, without which links or renames differ")

    def _fill(self, lower: int) -> None:
        self._files.make_directory(_STEP, lower, "directory")
        os.close(self._files.create(_STEP, lower, "file"))
        self._files.link(_STEP, lower, "file", lower, "name")

    def _behave(self, merged: int) -> None:
        actions: dict[str, Callable[[], None]] = {
            "keep extended attributes": lambda: self._files.set_xattr(_STEP, merged, "file", "user.flux", b"1"),
            "keep ACLs": lambda: self._files.set_xattr(_STEP, merged, "file", "system.posix_acl_access", _acl()),
            "make a link": lambda: self._files.symlink(_STEP, "file", merged, "link"),
            "delete": lambda: self._files.unlink(_STEP, merged, "link"),
        }
        if self._root:
            actions["rename a directory"] = lambda: self._files.rename(_STEP, merged, "directory", merged, "renamed")
            actions["keep linked names together"] = lambda: self._write_through(merged)
        for name, action in actions.items():
            try:
                action()
            except OSError as error:
                raise Unfit(f"an overlay cannot {name} here: {os.strerror(error.errno or errno.EIO)}") from error

    def _write_through(self, merged: int) -> None:
        descriptor = os.open("file", os.O_WRONLY, dir_fd=merged)
        self._files.write(_STEP, descriptor, b"written")
        os.close(descriptor)
        if os.stat("name", dir_fd=merged).st_size != len(b"written"):
            raise OSError(errno.ESTALE, "the other name shows the old content")


def _acl() -> bytes:
    """Return an ACL with an entry for one user, and what such an ACL must have beside it."""
    nobody = 0xFFFFFFFF
    entries = ((1, 6, nobody), (2, 4, os.geteuid()), (4, 4, nobody), (0x10, 4, nobody), (0x20, 0, nobody))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise Unfit(f"{what} is not possible: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
