"""The files of a running sandbox as one of its users names them (spec: e2b, §4).

The user decides where relative paths begin and whose new files are; as with E2B's own daemon, it is no limit to what
may be read or written, for who may call here may also run commands as any user.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import msgspec

from flux.core import access, paths
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.engine.context import Context
from flux.engine.filesystem import removal, tree, writing
from flux.engine.filesystem.entries import FileEntry, checked_notes, entry_of
from flux.engine.filesystem.spool import MIB, Body, Spool
from flux.engine.filesystem.tree import Tree
from flux.engine.filesystem.watch import Watch
from flux.engine.lifecycle import roots, spots
from flux.engine.lifecycle.spots import DIRECTORY, HANDLE
from flux.failpoints import Point

ENTRIES_MAX = 50_000
_DEPTH_MAX = 64
_ENTRY = HANDLE | os.O_NOFOLLOW


class ReadableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read: an open descriptor, which the caller closes, and what is told of the file. Times in ns."""

    descriptor: int
    path: str
    size: int
    modified_ns: int


class Filesystem:
    """What one user does to the files of one sandbox. Each call stands for itself.

    Args:
        context: the engine's surroundings.
        actor: who asks.
        reference: which sandbox.
        user: a name of its ``/etc/passwd``, or a uid.
    """

    def __init__(self, context: Context, actor: Actor, reference: str, user: str) -> None:
        self._context = context
        self._actor = actor
        self._reference = reference
        self._user = user

    @contextmanager
    def _tree(self, operation: str, path: str) -> Iterator[Tree]:
        """Hold the files; to write them, so that no pause and no apply comes in between."""
        context = self._context
        writes = operation == "files.write"
        with context.operation(self._actor, operation), spots.errors(path):
            sandbox = context.sandbox(self._actor, self._reference)
            if writes:
                access.permit_direct_change(self._actor, bound=sandbox.layout == "bound")
            with (
                context.locks.sandbox(sandbox.id),
                roots.opened(context, sandbox) as root,
                roots.locked(context, root, exclusive=False) if writes else nullcontext(),
                tree.opened(context, sandbox, root, self._user) as found,
            ):
                yield found

    def _record(self, found: Tree, did: str, path: str, **details: Any) -> None:
        told = {"path": paths.portable(path), **({} if did == "write" else {"action": did}), **details}
        context = self._context
        context.stores.audit.append(
            context.line(AuditKind.SANDBOX_WRITE, self._actor, sandbox_id=found.sandbox.id, details=told)
        )

    # Looking

    def stat(self, path: str) -> FileEntry:
        """Return what is told of an entry itself, also if it is a link. Raises ``not_found``, ``invalid``."""
        with self._tree("files.list", path) as found:
            return _told(found, found.absolute(path))

    def entries(self, path: str, depth: int = 1) -> list[FileEntry]:
        """List what a directory holds, and what its directories hold down to ``depth``; names in order of their bytes.

        Raises:
            FluxError: ``invalid`` for what is no directory, ``too_large`` for more than can be listed at once.
        """
        with self._tree("files.list", path) as found:
            at = found.absolute(path)
            directory = found.handle(at, DIRECTORY)
            result: list[FileEntry] = []
            _list(found, directory, at, min(max(depth, 1), _DEPTH_MAX), result)
            return result

    def open_file(self, path: str) -> ReadableFile:
        """Open a regular file for reading; the caller closes its descriptor."""
        with self._tree("files.read", path) as found:
            at = found.absolute(path)
            descriptor = writing.open_regular(found, at)
            status = os.fstat(descriptor)
            return ReadableFile(descriptor=descriptor, path=at, size=status.st_size, modified_ns=status.st_mtime_ns)

    def watch(self, path: str, recursive: bool = False) -> Watch:
        """Watch a directory; the caller closes the watch, at the latest when the execution has ended.

        Raises:
            FluxError: ``not_found``; ``invalid`` for what is no directory; ``exhausted`` for too many directories.
        """
        with self._tree("files.list", path) as found:
            at = found.absolute(path)
            handle = found.handle(at, HANDLE)
            try:
                if not stat.S_ISDIR(os.fstat(handle).st_mode):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                found.refuse_made_up(handle, at)
                return Watch(handle, at, found.instance, found.root if found.whole else None, recursive=recursive)
            finally:
                os.close(handle)

    # Changing

    def make_directory(self, path: str) -> FileEntry:
        """Make a directory and what is missing above it. Raises ``already_exists``; ``invalid`` if a file is there."""
        with self._tree("files.write", path) as found:
            at = found.absolute(path)
            _refuse_present(found, at)
            directory, name = found.make_parents(at)
            try:
                found.make_one(directory, name)
            except FileExistsError:
                _refuse_present(found, at)
                raise
            finally:
                os.close(directory)
            self._record(found, "make-directory", at)
            return _told(found, at)

    def move(self, source: str, destination: str) -> FileEntry:
        """Rename an entry; what has the new name is replaced as by ``rename``, what is missing above it is made.

        Raises:
            FluxError: ``not_found``; ``conflict`` for a directory that is not empty; ``invalid`` across mounts.
        """
        with self._tree("files.write", source) as found:
            old, new = found.absolute(source), found.absolute(destination)
            os.close(found.entry(old))
            from_directory, old_name = found.parent(old)
            try:
                with spots.errors(destination):
                    to_directory, new_name = found.make_parents(new)
                try:
                    with _mounts_told(old):
                        removal.refuse_mounted(from_directory, old_name)
                    with _mounts_told(new), suppress(FileNotFoundError):
                        removal.refuse_mounted(to_directory, new_name)
                    found.files.rename(Point.FILE_WRITE, from_directory, old_name, to_directory, new_name)
                finally:
                    os.close(to_directory)
            finally:
                os.close(from_directory)
            self._record(found, "move", old, to=paths.portable(new))
            return _told(found, new)

    def remove(self, path: str) -> None:
        """Remove an entry and all below it; success too if there is none. A link goes, not what it leads to."""
        with self._tree("files.write", path) as found:
            at = found.absolute(path)
            try:
                directory, name = found.parent(at)
            except (FileNotFoundError, NotADirectoryError):
                return
            try:
                with _mounts_told(at):
                    removal.remove(found.files, directory, name)
            finally:
                os.close(directory)
            self._record(found, "remove", at)

    def put_file(self, path: str, body: Body, metadata: Mapping[str, str] | None = None) -> FileEntry:
        """Write a file as a whole: in place, all or nothing. What was noted on it before is gone.

        ``metadata``: what to note on it, with keys in lower case (``entries.checked_notes``).

        Raises:
            FluxError: ``invalid``; ``exhausted`` if there is no space for it: nothing was changed.
        """
        notes = checked_notes(metadata or {})
        with self._tree("files.write", path) as found:
            at = found.absolute(path)
            if at == paths.ROOT:
                raise spots.is_directory(at)
            writing.put(found, at, body, notes)
            self._record(found, "write", at, size=body.size)
            return _told_of_file(found, at, notes)

    def compose(self, sources: Sequence[str], destination: str) -> FileEntry:
        """Join files to one, in order, and remove them.

        Raises:
            FluxError: ``invalid`` without sources, or if one is the destination; ``not_found``.
        """
        if not sources:
            raise FluxError(Code.INVALID, "cannot join files: none is named; give source_paths")
        with self._tree("files.write", destination) as found:
            new, parts = found.absolute(destination), [found.absolute(source) for source in sources]
            if new in parts:
                raise FluxError(
                    Code.INVALID,
                    f"cannot join files to {printable(new)[:200]!r}: it is one of them; give it another name",
                )
            size = writing.compose(found, parts, new)
            self._record(found, "write", new, size=size)
            return _told_of_file(found, new, {})

    def spool(self) -> Spool:
        """Return where the content of a file waits until it is whole."""
        settings, state = self._context.settings, self._context.stores.state
        return Spool(state.place("scratch"), settings.disk_reserve_mib * MIB)


def _told(found: Tree, path: str) -> FileEntry:
    handle = found.entry(path)
    try:
        return entry_of(handle, path, found.owners, told=found.is_plain(handle))
    finally:
        os.close(handle)


def _told_of_file(found: Tree, path: str, notes: Mapping[str, str]) -> FileEntry:
    """Return what is told of a file that was just written, and may be gone again."""
    handle = found.handle(path)
    try:
        return msgspec.structs.replace(entry_of(handle, path, found.owners), metadata=dict(notes))
    finally:
        os.close(handle)


def _list(found: Tree, directory: int, path: str, depth: int, result: list[FileEntry]) -> None:
    """Add a directory's entries; it is closed."""
    try:
        for name in sorted(os.listdir(directory), key=paths.to_bytes):
            _list_one(found, directory, name, paths.join(path, name), depth, result)
    finally:
        os.close(directory)


def _list_one(found: Tree, directory: int, name: str, path: str, depth: int, result: list[FileEntry]) -> None:
    try:
        handle = os.open(name, _ENTRY, dir_fd=directory)
    except FileNotFoundError:  # gone since its name was read
        return
    try:
        if len(result) >= ENTRIES_MAX:
            raise FluxError(
                Code.TOO_LARGE,
                f"cannot list so much: there are more than {ENTRIES_MAX} entries; list a directory further down",
                {"limit": ENTRIES_MAX},
            )
        entry = entry_of(handle, path, found.owners, told=found.is_plain(handle))
        result.append(entry)
        if entry.kind == "directory" and depth > 1:
            _list(found, os.open(".", DIRECTORY, dir_fd=handle), path, depth - 1, result)
    finally:
        os.close(handle)


def _refuse_present(found: Tree, path: str) -> None:
    """Let a path pass at which nothing is."""
    try:
        handle = found.handle(path)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise FluxError(
                Code.INVALID, f"cannot make the directory {printable(path)[:200]}: there is a file with that name"
            )
    finally:
        os.close(handle)
    raise FluxError(Code.ALREADY_EXISTS, f"cannot make the directory {printable(path)[:200]}: it is there already")


@contextmanager
def _mounts_told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        raise FluxError(
            Code.DENIED,
            f"cannot take away the path {printable(path)[:200]} of the sandbox: a file system is mounted in it",
        ) from error
