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
from flux.ports.substrate import Instance
from flux.store.places import UPPER

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """An open workspace root. ``path`` is where it lies on the host: the directory, or a managed one's upper layer.

    What identifies a managed one is the sandbox's own directory, as each generation writes to another layer.
    ``instance``: the execution whose tree it is, if it is managed.
    """

    descriptor: int
    path: str
    extent: Extent
    instance: Instance | None = None

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
    upper = f"{context.stores.places.generation(sandbox.id, sandbox.generation)}/{UPPER}"
    with context.instances.live(sandbox.id, sandbox.generation, lambda: launch.start(context, sandbox)) as instance:
        yield Root(
            descriptor=instance.tree_descriptor, path=upper, extent=own_extent(context, sandbox), instance=instance
        )


@contextmanager
def locked(context: Context, root: Root, *, exclusive: bool) -> Iterator[None]:
    """Have an open workspace root, shared or alone.

    Raises:
        FluxError: ``unavailable`` if others have it for too long, or if the sandbox was paused or ended meanwhile: what
            is written to its tree then would be lost, or would change what was saved.
    """
    with context.locks.root(root.extent, exclusive=exclusive):
        if root.instance is not None and not root.instance.alive():
            raise FluxError(
                Code.UNAVAILABLE,
                "cannot use the workspace: the sandbox was paused, or its processes ended, meanwhile; nothing was "
                "changed, try again",
                {"reason": "ended"},
            )
        yield


def own_extent(context: Context, sandbox: Sandbox) -> Extent:
    """Return what identifies a sandbox's workspace, whether it runs or not.

    Raises:
        FluxError: ``conflict`` if a bound directory is gone, ``denied`` if it cannot be read.
    """
    directory = sandbox.directory
    if directory is None:
        return extent(context.stores.state.place("sandboxes", sandbox.id))
    descriptor = open_directory(directory)
    try:
        return extent(directory, descriptor)
    finally:
        os.close(descriptor)


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
