"""The real workspace of a sandbox, held open: whose it is, where it lies, what it overlaps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import TEMPORARY, Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import launch
from flux.engine.locks import Extent, Inode

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """An open workspace root. ``path`` is where it lies on the host: the directory, or a managed one's upper layer."""

    descriptor: int
    path: str
    extent: Extent

    @property
    def device(self) -> int:
        """The device number of the identifying directory."""
        return self.extent.root[0]

    @property
    def inode(self) -> int:
        """The inode number of the identifying directory."""
        return self.extent.root[1]


def not_its_own(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the workspace paths that are not the workspace's: in a managed sandbox, where the kernel's trees stand."""
    return () if sandbox.layout == "bound" else ("/dev", "/proc", "/sys", TEMPORARY)


@contextmanager
def opened(context: Context, sandbox: Sandbox) -> Iterator[Root]:
    """Hold a sandbox's real workspace open.

    Raises:
        FluxError: ``conflict`` if the directory is gone, ``denied`` if it cannot be read.
    """
    directory = sandbox.directory
    if directory is not None:
        descriptor = open_directory(directory)
        try:
            yield Root(descriptor=descriptor, path=directory, extent=extent(directory, descriptor))
        finally:
            os.close(descriptor)
        return
    upper = context.stores.state.place("sandboxes", sandbox.id, "layer", "upper")
    with context.instances.live(sandbox.id, lambda: launch.start(context, sandbox)) as instance:
        yield Root(descriptor=instance.tree_descriptor, path=upper, extent=extent(upper))


def open_directory(path: str) -> int:
    """Open a bound workspace's directory.

    Raises:
        FluxError: ``conflict`` if it is gone or no directory any more, ``denied`` if it cannot be read.
    """
    try:
        return os.open(path, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FluxError(
            Code.CONFLICT,
            f"cannot use the workspace {printable(path)}: the directory is gone; bring it back, or delete the sandbox",
            {"workspace": printable(path)},
        ) from error
    except PermissionError as error:
        raise FluxError(
            Code.DENIED, f"cannot use the workspace {printable(path)}: it is not readable for you"
        ) from error


def extent(path: str, descriptor: int | None = None) -> Extent:
    """Return the extent of a root directory whose path holds no symbolic link."""
    status = os.stat(path) if descriptor is None else os.fstat(descriptor)
    above: set[Inode] = set()
    while path != "/":
        path = os.path.dirname(path)
        holder = os.stat(path)
        above.add((holder.st_dev, holder.st_ino))
    return Extent((status.st_dev, status.st_ino), frozenset(above))
