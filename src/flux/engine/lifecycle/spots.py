"""Where a path of a real sandbox lies on the host, and how it is opened without ever leaving the sandbox.

In a managed sandbox links lead to where the sandbox sees them lead, absolute ones too. In a bound one, which is a part
of the user's own file system, they are followed beneath the directory only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import HOME, TEMPORARY, WORK, Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import roots

HANDLE = os.O_PATH | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_MAGICLINKS = 0x02
_BENEATH = 0x08
_IN_ROOT = 0x10
#: File systems that only hold what was put into them: ext, XFS, btrfs, overlay, tmpfs, ZFS, F2FS, bcachefs, EROFS,
#: SquashFS. What the kernel makes up (``/proc``) would be read and written with the rights of Flux, not of the sandbox.
_PLAIN = frozenset(
    {
        *(0xEF53, 0x58465342, 0x9123683E, 0x794C7630, 0x01021994),
        *(0x2FC12FC1, 0xF2F52010, 0xCA451A4E, 0xE0F5E1E2, 0x73717368),
    }
)


class Spot(msgspec.Struct, frozen=True):
    """An open directory of the sandbox, and a path beneath it. ``whole``: the directory is the sandbox's own root."""

    root: int
    path: str
    whole: bool = False

    def at(self, path: str) -> Spot:
        """Return another path beneath the same directory."""
        return Spot(self.root, path, self.whole)


@contextmanager
def opened(context: Context, sandbox: Sandbox, asked: str) -> Iterator[Spot]:
    """Hold open where an absolute path of a sandbox lies."""
    path = paths.normalise(asked)
    if sandbox.layout == "bound":
        for place, name in ((HOME, "home"), (TEMPORARY, "tmp")):
            if paths.is_within(path, place):
                descriptor = os.open(context.stores.state.place("sandboxes", sandbox.id, name), DIRECTORY)
                try:
                    yield Spot(descriptor, path[len(place) :] or paths.ROOT)
                finally:
                    os.close(descriptor)
                return
        if paths.is_within(path, WORK):
            path = path[len(WORK) :] or paths.ROOT
    with roots.opened(context, sandbox) as root:
        yield Spot(root.descriptor, path, whole=sandbox.layout == "managed")


def resolve(spot: Spot, flags: int) -> int:
    """Open what is at a spot; links on the way are followed within the sandbox.

    Raises:
        OSError: ``EXDEV`` or ``ELOOP`` if a link leads out of a bound directory, or is the kernel's own.
    """
    from flux.trees import _native
    from flux.trees.beneath import open_beneath

    within = _IN_ROOT if spot.whole else _BENEATH
    try:
        return _native.openat2(spot.root, paths.relative(spot.path), flags | os.O_CLOEXEC, 0, within | _NO_MAGICLINKS)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return open_beneath(spot.root, spot.path, flags)


def is_plain(root: int, descriptor: int) -> bool:
    """Tell whether an entry lies in a file system as the sandbox's own, and not in one of the kernel's."""
    from flux.trees import _native

    magic = _native.filesystem(descriptor)
    return magic in _PLAIN or magic == _native.filesystem(root)


def refuse_made_up(spot: Spot, descriptor: int) -> None:
    """Let an entry pass whose content Flux may read or write for the sandbox.

    Raises:
        FluxError: ``denied`` for what the kernel makes up.
    """
    if spot.whole and not is_plain(spot.root, descriptor):
        raise FluxError(
            Code.DENIED,
            f"cannot use the path {printable(spot.path)[:200]} of the sandbox: the kernel makes up what is there; "
            "use a command in the sandbox",
        )


@contextmanager
def errors(path: str) -> Iterator[None]:
    """Turn the operating system's refusals into Flux's."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def refusal(error: OSError, path: str) -> FluxError:
    """Return what the operating system's refusal of a path means."""
    action = f"cannot use the path {printable(path)[:200]} of the sandbox"
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return FluxError(Code.NOT_FOUND, f"{action}: there is nothing with that name")
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return FluxError(Code.INVALID, f"{action}: a link or a mount in it leads out of the workspace")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL):
        return FluxError(Code.INVALID, f"{action}: {reason}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FluxError(Code.DENIED, f"{action}: {reason}")
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ETXTBSY):
        return FluxError(Code.CONFLICT, f"{action}: {reason}; see what is there, and try again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FluxError(Code.EXHAUSTED, f"{action}: {reason}; free some space and try again")
    return FluxError(Code.UNAVAILABLE, f"{action}: {reason}")


def refuse_irregular(mode: int, path: str) -> None:
    """Let a regular file pass.

    Raises:
        FluxError: ``invalid``.
    """
    if stat.S_ISDIR(mode):
        raise is_directory(path)
    if not stat.S_ISREG(mode):
        raise FluxError(
            Code.INVALID, f"cannot use the path {printable(path)[:200]} of the sandbox: it is not a regular file"
        )


def is_directory(path: str) -> FluxError:
    """Return the error for a directory where a file is meant."""
    return FluxError(Code.INVALID, f"cannot use the path {printable(path)[:200]} of the sandbox: it is a directory")
