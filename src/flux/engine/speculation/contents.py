"""The contents on both sides of a changeset's entries, from wherever they are kept, checked by digest.

Before: the pre-image, or the real file while it is still the same. After: the blob, or the place that a reference
names. No program ever runs on them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from flux.core import paths, textdiff
from flux.core.changeset import Change, Changeset, Entry
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType
from flux.core.paths import from_portable
from flux.engine.context import Context
from flux.engine.results import FileDiff, OpenFile
from flux.store.changesets import BLOBS, PREIMAGES
from flux.store.state import DIRECTORY
from flux.trees.beneath import open_regular
from flux.trees.preimages import name_of
from flux.trees.scan import hash_file

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look: the changeset's directory, and the real workspace if it is there."""

    changeset_id: str
    directory: int
    root: int | None

    def open_after(self, change: Change) -> OpenFile:
        """Open the content that a change gives a file. The caller closes the descriptor.

        Raises:
            FluxError: ``invalid`` if it leaves no regular file, ``illegal_state`` if the content is not kept any more,
                ``not_applicable`` if it was never staged.
        """
        shown = paths.printable(change.location)[:200]
        if change.after is None or change.after.type is not EntryType.FILE:
            raise FluxError(Code.INVALID, f"cannot read {shown} of the changeset: it is no regular file there")
        descriptor = self._after(change)
        if descriptor is not None:
            return OpenFile(descriptor=descriptor, size=change.after.size, mode=change.after.mode_bits)
        if change.staged is None and "content" in change.attributes:
            raise FluxError(Code.NOT_APPLICABLE, f"cannot read {shown} of the changeset: it could not be staged")
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot read {shown} of the changeset {self.changeset_id}: its content is not kept any more",
        )

    def before(self, change: Change) -> bytes | None:
        """Return the content that a file had; ``None`` if it is not to be had."""
        return None if change.before is None else _read(self._before(change.location, change.before))

    def after(self, change: Change) -> bytes | None:
        """Return the content that a change gives a file; ``None`` if it is not to be had."""
        return None if change.after is None else _read(self._after(change))

    def diff(self, change: Change) -> FileDiff:
        """Return the difference of one entry."""
        text, note = self._text(change)
        return FileDiff(
            path=change.path,
            path_base64=change.path_base64,
            kind=change.kind,
            before=change.before,
            after=change.after,
            text=text,
            note=note,
        )

    def _text(self, change: Change) -> tuple[str | None, str | None]:
        sides = [entry for entry in (change.before, change.after) if entry is not None]
        if not any(entry.type is EntryType.FILE for entry in sides):
            return None, "not a regular file"
        if _content_is_equal(change):
            return None, "the content is the same"
        if any(_is_large(entry) for entry in sides):
            return None, f"larger than {textdiff.DIFF_BYTES_MAX} bytes"
        contents = []
        for entry, read in ((change.before, self.before), (change.after, self.after)):
            is_file = entry is not None and entry.type is EntryType.FILE
            content = read(change) if is_file else None
            if is_file and content is None:
                return None, "the content is not kept"
            contents.append(content)
        found = textdiff.unified(contents[0], contents[1], change.location)
        if found.kind == "text":
            return found.hunks, None
        return None, found.reason or found.kind

    def _before(self, path: str, entry: Entry) -> int | None:
        if entry.digest is not None:
            kept = self._in(PREIMAGES, name_of(entry.digest))
            if kept is not None:
                return kept
        return self._real(path, entry.digest)

    def _after(self, change: Change) -> int | None:
        staged, entry = change.staged, change.after
        if entry is None:
            return None
        if staged is not None and staged.blob is not None:
            kept = self._in(BLOBS, staged.blob)
            if kept is not None:
                return kept
        if staged is not None and staged.reference_path is not None:
            found = self._before(staged.reference_path, entry)
            if found is not None:
                return found
        return self._before(change.location, entry)

    def _in(self, part: str, name: str) -> int | None:
        with suppress(FileNotFoundError):
            holder = os.open(part, DIRECTORY, dir_fd=self.directory)
            try:
                return os.open(name, _READ, dir_fd=holder)
            finally:
                os.close(holder)
        return None

    def _real(self, path: str, digest: str | None) -> int | None:
        """Open the real file at ``path`` if it has that content now."""
        if self.root is None or digest is None:
            return None
        try:
            descriptor = open_regular(self.root, path)
        except OSError:
            return None
        if hash_file(descriptor) == digest:
            os.lseek(descriptor, 0, os.SEEK_SET)
            return descriptor
        os.close(descriptor)
        return None


@contextmanager
def opened(context: Context, record: Changeset) -> Iterator[Contents]:
    """Hold open what a changeset's contents are read from."""
    with context.stores.changesets.opened(record.id) as directory:
        root = _root(context, record)
        try:
            yield Contents(changeset_id=record.id, directory=directory, root=root)
        finally:
            if root is not None:
                os.close(root)


def _root(context: Context, record: Changeset) -> int | None:
    """Open the real workspace; ``None`` if it is gone, is another directory, or is a managed one that does not run."""
    instance = context.instances.running(record.sandbox_id)
    if instance is not None:
        return os.dup(instance.tree_descriptor)
    try:
        descriptor = os.open(from_portable(record.root), DIRECTORY)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) == (record.root_device, record.root_inode):
        return descriptor
    os.close(descriptor)
    return None


def _content_is_equal(change: Change) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or before.type is not after.type:
        return False
    return before.digest is not None and before.digest == after.digest


def _is_large(entry: Entry) -> bool:
    return entry.type is EntryType.FILE and entry.size > textdiff.DIFF_BYTES_MAX


def _read(descriptor: int | None) -> bytes | None:
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
