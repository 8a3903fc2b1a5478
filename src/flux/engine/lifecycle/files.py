"""Files of the real sandbox, in its own terms: ``/work/a``, ``/home/user/b``, ``/tmp/c`` in a bound one.

In a bound sandbox any other path is taken from the workspace's root, as in changesets. Nothing leads out of the
sandbox (``spots``), and only regular files are opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from flux.core import access, manifest, paths
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.changeset import Entry
from flux.core.errors import Code, FluxError
from flux.engine.context import Context
from flux.engine.lifecycle import roots, spots
from flux.engine.lifecycle.spots import DIRECTORY, HANDLE, Spot
from flux.engine.results import DirectoryEntry, OpenFile, Written
from flux.failpoints import Point
from flux.ports.files import Files

_DEFAULT_MODE = 0o644
_MODE_MAX = 0o7777


def read_file(context: Context, actor: Actor, reference: str, path: str) -> OpenFile:
    """Open a regular file for reading."""
    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id), spots.opened(context, sandbox, path) as spot, spots.errors(path):
        handle = spots.resolve(spot, HANDLE)
        try:
            status = os.fstat(handle)
            spots.refuse_irregular(status.st_mode, path)
            spots.refuse_made_up(spot, handle)
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
        spots.opened(context, sandbox, path) as spot,
    ):
        if spot.path == paths.ROOT:
            raise spots.is_directory(path)
        with spots.errors(path):
            size = _replace(context.files, spot, chunks, mode)
    details = {"path": paths.portable(path), "size": size}
    context.stores.audit.append(context.line(AuditKind.SANDBOX_WRITE, actor, sandbox_id=sandbox.id, details=details))
    return Written(path=path, size=size)


def list_directory(context: Context, actor: Actor, reference: str, path: str) -> list[DirectoryEntry]:
    """List a directory."""
    from flux.trees import scan

    sandbox = context.sandbox(actor, reference)
    with context.locks.sandbox(sandbox.id), spots.opened(context, sandbox, path) as spot, spots.errors(path):
        directory = spots.resolve(spot, DIRECTORY)
        try:
            result = []
            for name in sorted(os.listdir(directory), key=paths.to_bytes):
                token = scan.entry(directory, f"/{name}")
                if token:
                    result.append(DirectoryEntry(name=name, entry=Entry.of(manifest.parse(token))))
            return result
        finally:
            os.close(directory)


def _replace(files: Files, spot: Spot, chunks: Iterable[bytes], mode: int | None) -> int:
    parent = _make_parents(files, spot)
    name = paths.name(spot.path)
    temporary = f".flux-{os.urandom(8).hex()}"
    try:
        spots.refuse_made_up(spot, parent)
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
    spots.refuse_irregular(status.st_mode, path)
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


def _make_parents(files: Files, spot: Spot) -> int:
    """Open the directory that holds the path, making what is missing."""
    place = paths.parent(spot.path)
    try:
        return spots.resolve(spot.at(place), DIRECTORY)
    except FileNotFoundError:
        above = _make_parents(files, spot.at(place))
        try:
            with suppress(FileExistsError):
                files.make_directory(Point.FILE_WRITE, above, paths.name(place), 0o755)
        finally:
            os.close(above)
        return spots.resolve(spot.at(place), DIRECTORY)
