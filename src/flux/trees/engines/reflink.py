"""The engine ``reflink``: a copy that shares extents, where the file system can do that (spec: speculation)."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Collection

from flux.core import diff
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.beneath import DIRECTORY, open_regular
from flux.trees.engines import copy
from flux.trees.engines.copy import CopyTree
from flux.trees.engines.tree import PassedOver
from flux.trees.scan import Scan

_FICLONE = 0x40049409
_TRIAL = "reflink-trial"


def make(root: int, base: Scan, scratch: str, files: Files, *, skip: Collection[str] = ()) -> CopyTree:
    """Copy a workspace without copying contents.

    Raises:
        PassedOver: if the file systems cannot share extents, or as ``copy.make``.
        FluxError, OSError: as ``copy.make``.
    """
    sample = next((path for path, token in base.manifest.items() if token.startswith("f ") and diff.size(token)), None)
    if sample is None:
        raise PassedOver("there is no content to share")
    _try(root, sample, scratch, files)
    return copy.make(root, base, scratch, files, skip=skip)


def _try(root: int, sample: str, scratch: str, files: Files) -> None:
    directory = os.open(scratch, DIRECTORY)
    try:
        target = files.create(Point.SCRATCH, directory, _TRIAL)
        try:
            source = open_regular(root, sample)
            try:
                fcntl.ioctl(target, _FICLONE, source)
            finally:
                os.close(source)
        except OSError as error:
            reason = "the state directory is on another file system" if error.errno == errno.EXDEV else error.strerror
            raise PassedOver(f"extents cannot be shared: {reason}") from error
        finally:
            os.close(target)
            files.unlink(Point.SCRATCH, directory, _TRIAL)
    finally:
        os.close(directory)
