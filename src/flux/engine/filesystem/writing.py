"""Content put into files of a sandbox: in place, so that a file stays what it is, and all of it or nothing of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.engine.filesystem.entries import PREFIX
from flux.engine.filesystem.spool import Body
from flux.engine.filesystem.tree import Tree
from flux.engine.lifecycle import spots
from flux.engine.lifecycle.spots import HANDLE
from flux.failpoints import Point, reach

_STEP = Point.FILE_WRITE
_MODE = 0o644
_TRIES = 8
_WRITE = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


def put(tree: Tree, path: str, body: Body, notes: Mapping[str, str]) -> None:
    """Write a file as a whole. A link is followed; what is there keeps its inode, rights and owner.

    Raises:
        FluxError: ``invalid`` where no file can be, ``denied`` for what the kernel makes up.
        OSError: nothing was changed, but for directories that were missing.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            with _present(tree, path) as descriptor:
                _fill(descriptor, body, notes)
            return
        directory, name = tree.make_parents(path)
        try:
            _create(tree, directory, name, body, notes)
        except FileExistsError:  # somebody was faster, or it is a link that leads to nothing
            path = tree.through_links(path)
            continue
        finally:
            os.close(directory)
        return
    raise FluxError(
        Code.CONFLICT,
        f"cannot write the path {printable(path)[:200]} of the sandbox: it comes and goes meanwhile; try again",
    )


@contextmanager
def _present(tree: Tree, path: str) -> Iterator[int]:
    handle = tree.handle(path)
    try:
        spots.refuse_irregular(os.fstat(handle).st_mode, path)
        tree.refuse_made_up(handle, path)
        reach(_STEP)
        descriptor = _opened(handle)
    finally:
        os.close(handle)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(handle: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{handle}", _WRITE)
    except FileNotFoundError:  # it was removed between the two; its place is free
        raise
    except PermissionError:
        return os.open(f"/proc/self/fd/{handle}", _WRITE & ~os.O_RDWR | os.O_WRONLY)


def _fill(descriptor: int, body: Body, notes: Mapping[str, str]) -> None:
    _reserve(descriptor, body.size)
    _note(descriptor, notes)
    body.write_to(descriptor)
    if os.fstat(descriptor).st_size != body.size:
        os.ftruncate(descriptor, body.size)


def _create(tree: Tree, directory: int, name: str, body: Body, notes: Mapping[str, str]) -> None:
    descriptor = tree.files.create(_STEP, directory, name, _MODE)
    try:
        try:
            tree.give(descriptor)
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != _MODE:
                os.fchmod(descriptor, _MODE)
            _fill(descriptor, body, notes)
        except BaseException:
            _withdraw(tree, directory, name, descriptor)
            raise
    finally:
        os.close(descriptor)


def _withdraw(tree: Tree, directory: int, name: str, descriptor: int) -> None:
    """Remove a new file again, unless something else has its name by now."""
    with suppress(OSError):
        mine, found = os.fstat(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino):
            tree.files.unlink(_STEP, directory, name)


def _reserve(descriptor: int, size: int) -> None:
    """Have the room for the content before any of it is written."""
    from flux.trees.reserve import reserve

    if not size:
        return
    before = os.fstat(descriptor)
    try:
        reserve(descriptor, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        with suppress(OSError):  # lets go of what was reserved beyond the end
            os.ftruncate(descriptor, before.st_size)
        raise


def _note(descriptor: int, notes: Mapping[str, str]) -> None:
    """Note exactly this on a file."""
    try:
        before = {name for name in os.listxattr(descriptor) if name.startswith(PREFIX)}
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP and not notes:
            return
        raise
    wanted = {PREFIX + key: value.encode("ascii") for key, value in notes.items()}
    for name, value in wanted.items():
        os.setxattr(descriptor, name, value)
    for name in before - set(wanted):
        with suppress(OSError):
            os.removexattr(descriptor, name)


def compose(tree: Tree, sources: Sequence[str], destination: str) -> int:
    """Join files to one beside the destination, put it there, remove the sources; return its size."""
    directory, name = tree.make_parents(destination)
    temporary = f".flux-{os.urandom(8).hex()}"
    try:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            spots.refuse_irregular(found.st_mode, destination)
        descriptor = tree.files.create(_STEP, directory, temporary, _MODE)
        try:
            size = _join(tree, sources, descriptor)
            tree.files.rename(_STEP, directory, temporary, directory, name)
        except BaseException:
            _withdraw(tree, directory, temporary, descriptor)
            raise
        finally:
            os.close(descriptor)
    finally:
        os.close(directory)
    for source in set(sources):
        _drop(tree, source)
    return size


def _join(tree: Tree, sources: Sequence[str], target: int) -> int:
    tree.give(target)
    os.fchmod(target, _MODE)
    size = 0
    for source in sources:
        part = open_regular(tree, source)
        try:
            length = os.fstat(part).st_size
            _append(target, part, length, size)
            size += length
        finally:
            os.close(part)
    return size


def _append(target: int, part: int, length: int, position: int) -> None:
    """Copy a file to the end of another one."""
    done = 0
    while done < length:
        data = os.pread(part, min(1 << 20, length - done), done)
        if not data:
            raise OSError(errno.EIO, "a part became shorter while it was joined")
        left = memoryview(data)
        while left:
            written = os.pwrite(target, left, position + done)
            done += written
            left = left[written:]


def _drop(tree: Tree, path: str) -> None:
    with suppress(OSError):
        directory, name = tree.parent(path)
        try:
            tree.files.unlink(_STEP, directory, name)
        finally:
            os.close(directory)


def open_regular(tree: Tree, path: str) -> int:
    """Open a regular file for reading; whatever else is there is never opened."""
    handle = tree.handle(path, HANDLE)
    try:
        spots.refuse_irregular(os.fstat(handle).st_mode, path)
        tree.refuse_made_up(handle, path)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)
