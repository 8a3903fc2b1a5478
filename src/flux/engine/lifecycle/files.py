"""Files of the real sandbox, in its own terms: ``/work/a``, ``/home/user/b``, ``/tmp/c`` in a bound one.

In a bound sandbox any other path is taken from the workspace's root, as in changesets. Nothing leads out of the
sandbox: the kernel resolves links beneath the root only, and only regular files are opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from flux.core import access, manifest, paths
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.changeset import Entry
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import HOME, TEMPORARY, WORK, Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.results import DirectoryEntry, OpenFile, Written
from flux.failpoints import Point
from flux.ports.files import Files

_HANDLE = os.O_PATH | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_MAGICLINKS = 0x02
_BENEATH = 0x08
_DEFAULT_MODE = 0o644
_MODE_MAX = 0o7777


class _Spot(msgspec.Struct, frozen=True):
    """An open directory of the sandbox, and a path beneath it."""

    root: int
    path: str


def read_file(context: Context, actor: Actor, reference: str, path: str) -> OpenFile:
    """Open a regular file for reading."""
    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id), _spot(context, sandbox, path) as spot, _errors(path):
        handle = _resolve(spot, _HANDLE)
        try:
            status = os.fstat(handle)
            _refuse_irregular(status.st_mode, path)
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(handle)
    return OpenFile(descriptor=descriptor, size=status.st_size, mode=stat.S_IMODE(status.st_mode))


def write_file(
    context: Context, actor: Actor, reference: str, path: str, chunks: Iterable[bytes], mode: int | None
) -> Written:
    """Write a file as a whole."""
    sandbox = context.sandbox(actor, reference)
    access.permit_direct_change(actor, bound=sandbox.layout == "bound")
    if mode is not None and not 0 <= mode <= _MODE_MAX:
        raise FluxError(Code.INVALID, f"cannot write a file with the mode {mode:o}: permission bits are 0 to 7777")
    with (
        context.locks.sandbox(sandbox.id),
        roots.opened(context, sandbox) as root,
        roots.locked(context, root, exclusive=False),
        _spot(context, sandbox, path) as spot,
    ):
        if spot.path == paths.ROOT:
            raise _is_directory(path)
        with _errors(path):
            size = _replace(context.files, spot, chunks, mode)
    details = {"path": paths.portable(path), "size": size}
    context.stores.audit.append(context.line(AuditKind.SANDBOX_WRITE, actor, sandbox_id=sandbox.id, details=details))
    return Written(path=path, size=size)


def list_directory(context: Context, actor: Actor, reference: str, path: str) -> list[DirectoryEntry]:
    """List a directory."""
    from flux.trees import scan

    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id), _spot(context, sandbox, path) as spot, _errors(path):
        directory = _resolve(spot, _DIRECTORY)
        try:
            result = []
            for name in sorted(os.listdir(directory), key=paths.to_bytes):
                token = scan.entry(directory, f"/{name}")
                if token:
                    result.append(DirectoryEntry(name=name, entry=Entry.of(manifest.parse(token))))
            return result
        finally:
            os.close(directory)


@contextmanager
def _spot(context: Context, sandbox: Sandbox, asked: str) -> Iterator[_Spot]:
    path = paths.normalise(asked)
    state = context.stores.state
    if sandbox.layout == "bound":
        for place, name in ((HOME, "home"), (TEMPORARY, "tmp")):
            if paths.is_within(path, place):
                descriptor = os.open(state.place("sandboxes", sandbox.id, name), _DIRECTORY)
                try:
                    yield _Spot(descriptor, path[len(place) :] or paths.ROOT)
                finally:
                    os.close(descriptor)
                return
        if paths.is_within(path, WORK):
            path = path[len(WORK) :] or paths.ROOT
    with roots.opened(context, sandbox) as root:
        yield _Spot(root.descriptor, path)


def _resolve(spot: _Spot, flags: int) -> int:
    from flux.trees import _native
    from flux.trees.beneath import open_beneath

    try:
        return _native.openat2(spot.root, paths.relative(spot.path), flags, 0, _BENEATH | _NO_MAGICLINKS)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return open_beneath(spot.root, spot.path, flags)


def _replace(files: Files, spot: _Spot, chunks: Iterable[bytes], mode: int | None) -> int:
    parent = _make_parents(files, spot)
    name = paths.name(spot.path)
    temporary = f".flux-{os.urandom(8).hex()}"
    try:
        before = _present(parent, name, spot.path)
        size = _write(files, parent, temporary, chunks)
        try:
            if before is not None and os.geteuid() == 0:
                files.set_owner(Point.FILE_WRITE, parent, temporary, before.st_uid, before.st_gid)
            kept = _DEFAULT_MODE if before is None else stat.S_IMODE(before.st_mode)
            files.set_mode(Point.FILE_WRITE, parent, temporary, kept if mode is None else mode)
            files.rename(Point.FILE_WRITE, parent, temporary, parent, name)
        except BaseException:
            files.unlink(Point.FILE_WRITE, parent, temporary)
            raise
        files.sync_file(Point.FILE_WRITE, parent)
        return size
    finally:
        os.close(parent)


def _present(parent: int, name: str, path: str) -> os.stat_result | None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _refuse_irregular(status.st_mode, path)
    return status


def _write(files: Files, parent: int, temporary: str, chunks: Iterable[bytes]) -> int:
    size = 0
    descriptor = files.create(Point.FILE_WRITE, parent, temporary, 0o600)
    try:
        for chunk in chunks:
            files.write(Point.FILE_WRITE, descriptor, chunk)
            size += len(chunk)
        files.sync_file(Point.FILE_WRITE, descriptor)
    except BaseException:
        with suppress(OSError):
            files.unlink(Point.FILE_WRITE, parent, temporary)
        raise
    finally:
        os.close(descriptor)
    return size


def _make_parents(files: Files, spot: _Spot) -> int:
    """Open the directory that holds the path, making what is missing."""
    place = paths.parent(spot.path)
    try:
        return _resolve(_Spot(spot.root, place), _DIRECTORY)
    except FileNotFoundError:
        above = _make_parents(files, _Spot(spot.root, place))
        try:
            with suppress(FileExistsError):
                files.make_directory(Point.FILE_WRITE, above, paths.name(place), 0o755)
        finally:
            os.close(above)
        return _resolve(_Spot(spot.root, place), _DIRECTORY)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refusal(error, path) from error


def _refusal(error: OSError, path: str) -> FluxError:
    action = f"cannot use the path {printable(path)[:200]} of the sandbox"
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return FluxError(Code.NOT_FOUND, f"{action}: there is nothing with that name")
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return FluxError(Code.INVALID, f"{action}: a link or a mount in it leads out of the workspace")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
        return FluxError(Code.INVALID, f"{action}: {reason}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FluxError(Code.DENIED, f"{action}: {reason}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FluxError(Code.EXHAUSTED, f"{action}: {reason}; free some space and try again")
    return FluxError(Code.UNAVAILABLE, f"{action}: {reason}")


def _refuse_irregular(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise _is_directory(path)
    if not stat.S_ISREG(mode):
        raise FluxError(
            Code.INVALID, f"cannot use the path {printable(path)[:200]} of the sandbox: it is not a regular file"
        )


def _is_directory(path: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot use the path {printable(path)[:200]} of the sandbox: it is a directory")
