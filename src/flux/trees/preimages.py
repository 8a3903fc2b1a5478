"""Pre-images: what text diffs need of the base, also after the real file has changed (spec: speculation).

A pre-image is named by its digest, in hexadecimal without the algorithm.
"""

from __future__ import annotations

import os

from flux.core.changeset import Change
from flux.core.limits import Caps
from flux.core.manifest import EntryType
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.contents import BaseContents

_LOOKED_AT = 8192
_BLOCK = 4096


def name_of(digest: str) -> str:
    """Return the file name of the pre-image with a digest."""
    return digest.rpartition(":")[2]


def keep_preimages(changes: list[Change], base: BaseContents, preimages: int, caps: Caps, files: Files) -> None:
    """Copy the text files whose content changed or went into the open directory ``preimages``, within the budget."""
    left = caps.preimage_bytes
    kept: set[str] = set()
    for change in changes:
        before = change.before
        if before is None or before.type is not EntryType.FILE or before.digest is None or not _lost(change):
            continue
        if before.digest in kept or not 0 < before.size <= caps.file_bytes or _room(before.size) > left:
            continue
        if _keep(change.location, name_of(before.digest), base, preimages, files):
            kept.add(before.digest)
            left -= _room(before.size)


def _room(size: int) -> int:
    """Return what a file takes on disk: whole blocks, so that the budget bounds how many files there are, too."""
    return -(-size // _BLOCK) * _BLOCK


def _lost(change: Change) -> bool:
    after = change.after
    return after is None or after.type is not EntryType.FILE or "content" in change.attributes


def _keep(path: str, name: str, base: BaseContents, preimages: int, files: Files) -> bool:
    source = base.open(path)
    if source is None:
        return False
    try:
        if b"\0" in os.pread(source, _LOOKED_AT, 0):
            return False
        target = files.create(Point.STAGE, preimages, name)
        try:
            files.copy(Point.STAGE, source, target)
        finally:
            os.close(target)
    finally:
        os.close(source)
    return True
