"""The staged contents of a changeset, hashed again before an apply uses them (spec: speculation)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

import msgspec

from flux.core import paths
from flux.core.changeset import Change
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import metadata
from flux.trees.beneath import DIRECTORY
from flux.trees.journal import Attributes
from flux.trees.scan import hash_file

NAME = "blobs"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_REPORTED_MAX = 10
# Nothing is there, or something that is no file: a link, a socket.
_NOT_IT = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO})


class Blob(msgspec.Struct, frozen=True):
    """What a staged file's inode looks like: its attributes and how many names it has."""

    attributes: Attributes
    links: int


def open_directory(directory: int) -> int | None:
    """Open the blobs of the changeset whose directory is open; ``None`` if it has none."""
    try:
        return os.open(NAME, DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        return None


def verify(files: Files, changeset_id: str, blobs: int | None, changes: Iterable[Change]) -> dict[str, Blob]:
    """Hash every staged blob and return what is known of each.

    Raises:
        FluxError: ``conflict`` with the reason ``digest_mismatch`` if one is missing or not what was approved.
    """
    result: dict[str, Blob] = {}
    wrong: list[str] = []
    for change in changes:
        staged, after = change.staged, change.after
        if staged is None or staged.blob is None or after is None:
            continue
        try:
            blob, digest = _inspect(files, blobs, staged.blob, after.type)
        except OSError as error:
            if error.errno not in _NOT_IT:
                raise
            wrong.append(change.location)
            continue
        if digest != after.digest:
            wrong.append(change.location)
        result[staged.blob] = blob
    if wrong:
        raise _mismatch(changeset_id, wrong)
    return result


def _inspect(files: Files, blobs: int | None, name: str, kind: EntryType) -> tuple[Blob, str | None]:
    if blobs is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if kind is not EntryType.FILE:  # a socket that a revert puts back; it has no content
        status, attributes = metadata.read((blobs, name))
        return Blob(attributes, status.st_nlink), None
    descriptor = _open(files, blobs, name)
    try:
        status = os.fstat(descriptor)
        digest = hash_file(descriptor) if stat.S_ISREG(status.st_mode) else None
        return Blob(metadata.of(status, metadata.xattrs(descriptor)), status.st_nlink), digest
    finally:
        os.close(descriptor)


def _open(files: Files, blobs: int, name: str) -> int:
    try:
        return os.open(name, _READ, dir_fd=blobs)
    except PermissionError:  # an earlier attempt gave it its final mode, which its owner may not read
        files.set_mode(Point.APPLY_PREPARE, blobs, name, 0o600)
        return os.open(name, _READ, dir_fd=blobs)


def _mismatch(changeset_id: str, wrong: list[str]) -> FluxError:
    names = ", ".join(paths.printable(path) for path in wrong[:_REPORTED_MAX])
    return FluxError(
        Code.CONFLICT,
        f"cannot apply changeset {changeset_id}: digest mismatch: the staged content of {len(wrong)} path(s) is not "
        f"what was approved ({names}): nothing was written; rerun it",
        {
            "reason": "digest_mismatch",
            "changeset": "failed",
            "count": len(wrong),
            "paths": [paths.to_json(path)[0] for path in wrong[:_REPORTED_MAX]],
        },
    )
