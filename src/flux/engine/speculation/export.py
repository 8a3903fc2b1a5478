"""Writing a changeset out: a patch that ``git apply`` takes, or a tar with everything (spec: speculation)."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal

import msgspec

from flux.core import patch, paths
from flux.core.access import Actor
from flux.core.changeset import Change, Changeset, Entry
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType
from flux.engine.context import Context
from flux.engine.results import OpenFile
from flux.engine.speculation import contents, lookup

_TAR_TYPES = {
    EntryType.FILE: tarfile.REGTYPE,
    EntryType.DIRECTORY: tarfile.DIRTYPE,
    EntryType.SYMLINK: tarfile.SYMTYPE,
    EntryType.FIFO: tarfile.FIFOTYPE,
    EntryType.CHARACTER_DEVICE: tarfile.CHRTYPE,
    EntryType.BLOCK_DEVICE: tarfile.BLKTYPE,
}


def export(
    context: Context, actor: Actor, reference: str, changeset_id: str, form: Literal["patch", "tar"]
) -> OpenFile:
    """Write a changeset into an unnamed file and return it.

    A tar holds ``changeset.json`` and, below ``files/``, every entry as it is after the change; what is deleted is
    named in ``changeset.json`` only.

    Raises:
        FluxError: ``illegal_state`` if its contents are dropped, ``not_applicable`` if some could not be staged.
    """
    row = lookup.find(context, actor, reference, changeset_id)
    record = context.stores.changesets.read(row.id)
    if record.unstaged:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot export the changeset {record.id}: {len(record.unstaged)} entries could not be staged",
            {"count": len(record.unstaged)},
        )
    descriptor = os.open(context.stores.state.place("scratch"), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as target, contents.opened(context, record) as source:
            write = _patch if form == "patch" else _tar
            write(source, record, lookup.effective(context, record).every(), target)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return OpenFile(descriptor=descriptor, size=os.fstat(descriptor).st_size)
    except BaseException:
        os.close(descriptor)
        raise


def _patch(source: contents.Contents, record: Changeset, changes: Sequence[Change], target: BinaryIO) -> None:
    for change in changes:
        before = _side(source, change, change.before, source.before)
        after = _side(source, change, change.after, source.after)
        if before is not None or after is not None:
            target.write(patch.patch(change.location, before, after))


def _side(
    source: contents.Contents, change: Change, entry: Entry | None, read: Callable[[Change], bytes | None]
) -> patch.Side | None:
    """Return one side as a patch tells it; entries that a patch cannot tell are left out."""
    if entry is None:
        return None
    if entry.type is EntryType.SYMLINK:
        return patch.Side("120000", paths.to_bytes(entry.link_target or ""))
    if entry.type is not EntryType.FILE:
        return None
    content = read(change)
    if content is None:
        raise _not_kept(source.changeset_id, change)
    return patch.Side("100755" if entry.mode_bits & stat.S_IXUSR else "100644", content)


def _tar(source: contents.Contents, record: Changeset, changes: Sequence[Change], target: BinaryIO) -> None:
    description = msgspec.json.encode({"changeset": record, "changes": changes})
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        header = tarfile.TarInfo("changeset.json")
        header.size, header.mtime = len(description), int(record.created_at)
        archive.addfile(header, io.BytesIO(description))
        for change in changes:
            if change.after is not None and change.after.type in _TAR_TYPES:
                _add(archive, source, change, change.after)


def _add(archive: tarfile.TarFile, source: contents.Contents, change: Change, entry: Entry) -> None:
    header = tarfile.TarInfo("files" + change.location)
    header.type = _TAR_TYPES[entry.type]
    header.mode, header.uid, header.gid = entry.mode_bits, entry.uid, entry.gid
    header.mtime = entry.mtime_ns // 1_000_000_000
    header.linkname = entry.link_target or ""
    header.devmajor, header.devminor = os.major(entry.rdev), os.minor(entry.rdev)
    header.pax_headers = {
        f"SCHILY.xattr.{key}": value.decode("utf-8", "surrogateescape") for key, value in entry.xattr_values.items()
    }
    if entry.type is not EntryType.FILE:
        archive.addfile(header)
        return
    file = source.open_after(change)
    header.size = file.size
    with os.fdopen(file.descriptor, "rb") as content:
        archive.addfile(header, content)


def _not_kept(changeset_id: str, change: Change) -> FluxError:
    return FluxError(
        Code.ILLEGAL_STATE,
        f"cannot export the changeset {changeset_id}: the content of {paths.printable(change.location)[:200]} is not "
        "kept any more",
    )
