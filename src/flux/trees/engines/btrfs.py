"""The engine ``snapshot``: a btrfs snapshot of the workspace's subvolume, made in constant time (spec: speculation)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Collection
from contextlib import suppress

from flux.failpoints import Point, reach
from flux.ports.files import Files
from flux.trees import _native
from flux.trees.engines.copy import TREE, CopyTree
from flux.trees.engines.tree import PassedOver
from flux.trees.scan import Scan

_MAGIC = 0x9123683E
_SUBVOLUME_INODE = 256
_SNAP_CREATE_V2 = 0x50009417
_SNAP_DESTROY = 0x5000940F
_REFUSED = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP})


def make(root: int, base: Scan, scratch: str, files: Files, *, skip: Collection[str] = ()) -> SnapshotTree:
    """Take a snapshot of a workspace.

    Raises:
        PassedOver: if the workspace is no subvolume, or the state directory not on the same btrfs.
        OSError: if taking it fails in another way.
    """
    if _native.filesystem(root) != _MAGIC:
        raise PassedOver("the workspace is not on btrfs")
    if os.fstat(root).st_ino != _SUBVOLUME_INODE:
        raise PassedOver("the workspace is not a btrfs subvolume")
    tree = SnapshotTree(scratch, files)
    try:
        _snapshot(root, tree.parent)
        tree.open()
        tree.settle(root, base, skip)
    except BaseException:
        tree.close()
        raise
    return tree


def _snapshot(root: int, parent: int) -> None:
    reach(Point.SCRATCH)
    # struct btrfs_ioctl_vol_args_v2: source, transaction, flags, four unused, name
    arguments = bytearray(struct.pack("=qQQ4Q4040s", root, 0, 0, 0, 0, 0, 0, TREE.encode()))
    try:
        fcntl.ioctl(parent, _SNAP_CREATE_V2, arguments)
    except OSError as error:
        if error.errno in _REFUSED:
            raise PassedOver(f"a snapshot beside the state directory is not possible: {error.strerror}") from error
        raise


class SnapshotTree(CopyTree):
    """A snapshot of a workspace for one run."""

    def _remove(self) -> None:
        reach(Point.SCRATCH)
        with suppress(OSError):  # for the unprivileged it is removed like any directory
            fcntl.ioctl(self.parent, _SNAP_DESTROY, bytearray(struct.pack("=q4088s", 0, TREE.encode())))
        super()._remove()
