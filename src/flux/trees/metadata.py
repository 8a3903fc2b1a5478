"""Owner, mode, extended attributes and times of one entry: reading them, and making them what they should be."""

from __future__ import annotations

import errno
import os
import stat

from flux.core.changeset import Entry
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees.area import Spot
from flux.trees.journal import Attributes

_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CAPABILITY = "security.capability"  # the kernel drops it with a change of owner
_ACL = "system.posix_acl_access"  # and rewrites this with a change of mode
_SET_ID = 0o6000
_WRITE = 0o200
OPEN = 0o600  # what an owner needs to read and to change an entry's attributes
# The machine's own labels, and file systems' own views of other attributes: a scan does not see them, and what is in no
# base must be neither set nor removed. XFS shows an ACL a second time, and removing it once removes both.
_FOREIGN = (
    "security.selinux",
    "security.ima",
    "security.evm",
    "security.SMACK64",
    "security.apparmor",
    "trusted.SGI_ACL_",
    "btrfs.",
)
# What the overlay left on an inode that came out of its upper layer. It must not reach the workspace.
_OVERLAY = ("trusted.overlay.", "user.overlay.")
_NO_XATTRS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


def read(spot: Spot) -> tuple[os.stat_result, Attributes]:
    """Return the status and the attributes of the entry at ``spot``, never following a link."""
    directory, name = spot
    handle = os.open(name, _HANDLE, dir_fd=directory)
    try:
        status = os.fstat(handle)
        return status, of(status, xattrs(f"/proc/self/fd/{handle}"))
    finally:
        os.close(handle)


def of(status: os.stat_result, values: dict[str, bytes]) -> Attributes:
    """Return the attributes that a status and extended attributes say."""
    return Attributes(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, values)


def xattrs(target: int | str) -> dict[str, bytes]:
    """Return the extended attributes of an open file, or of a path that is resolved as it stands."""
    try:
        keys = os.listxattr(target)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return {}
        raise
    return {key: os.getxattr(target, key) for key in keys if _is_carried(key)}


def _is_carried(key: str) -> bool:
    return not key.startswith(_FOREIGN) and (key.startswith("system.posix_acl_") or not key.startswith("system."))


def read_closed(files: Files, step: Point, spot: Spot) -> tuple[os.stat_result, Attributes]:
    """Do what ``read`` does for an owner without privileges, whom the mode may forbid it: it is opened first."""
    directory, name = spot
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if os.geteuid() != 0 and mode & OPEN != OPEN and not stat.S_ISLNK(status.st_mode):
        files.set_mode(step, directory, name, mode | OPEN)
    return read(spot)


def wanted(entry: Entry) -> Attributes:
    """Return the attributes that an entry of a changeset asks for."""
    return Attributes(entry.mode_bits, entry.uid, entry.gid, entry.mtime_ns, entry.xattr_values if entry.xattrs else {})


def settle(
    files: Files, step: Point, spot: Spot, current: Attributes, new: Attributes, *, symlink: bool = False
) -> None:
    """Make an entry's attributes ``new``, with no call for what is right already.

    The order matters: a change of owner drops set-id bits and capabilities, a user's attributes can be set only while
    the mode allows to write, a change of mode rewrites an ACL, and an ACL rewrites the mode.
    """
    directory, name = spot
    moved = (current.uid, current.gid) != (new.uid, new.gid)
    if moved:
        files.set_owner(step, directory, name, new.uid, new.gid)
    fresh = {key: value for key, value in new.xattrs.items() if moved or current.xattrs.get(key) != value}
    mode = current.mode
    if (fresh or current.xattrs != new.xattrs) and not symlink and not mode & _WRITE and os.geteuid() != 0:
        mode |= _WRITE
        files.set_mode(step, directory, name, mode)
    _remove_stale(files, step, spot, current, new)
    for key in fresh.keys() - {_ACL}:
        files.set_xattr(step, directory, name, key, fresh[key])
    changed = not symlink and (moved or mode != new.mode)
    if changed:
        files.set_mode(step, directory, name, new.mode)
    if _ACL in fresh or (changed and _ACL in new.xattrs):
        files.set_xattr(step, directory, name, _ACL, new.xattrs[_ACL])
    if current.mtime_ns != new.mtime_ns:
        files.set_times(step, directory, name, new.mtime_ns)


def _remove_stale(files: Files, step: Point, spot: Spot, current: Attributes, new: Attributes) -> None:
    for key in current.xattrs:
        if key in new.xattrs and not key.startswith(_OVERLAY):
            continue
        try:
            files.remove_xattr(step, *spot, key)
        except OSError as error:
            if error.errno != errno.ENODATA or key != _CAPABILITY:
                raise


def before_ours(current: Attributes, old: Attributes, new: Attributes, *, directory: bool) -> Attributes:
    """Return the attributes that take back a change from ``old`` to ``new``, wherever in it a crash came.

    What is neither the old nor the new value somebody else has set since, and it stays. A directory's mtime is always
    the old one: every step in it changed it.
    """
    meanwhile = {mode for end in (old.mode, new.mode) for mode in (end & ~_SET_ID, end | _WRITE, end | OPEN)}
    owner = (current.uid, current.gid)
    uid, gid = (old.uid, old.gid) if owner == (new.uid, new.gid) else owner
    return Attributes(
        old.mode if current.mode == new.mode or current.mode in meanwhile else current.mode,
        uid,
        gid,
        old.mtime_ns if directory or current.mtime_ns == new.mtime_ns else current.mtime_ns,
        _xattrs_before_ours(current, old, new),
    )


def _xattrs_before_ours(current: Attributes, old: Attributes, new: Attributes) -> dict[str, bytes]:
    result = {}
    for key in old.xattrs.keys() | new.xattrs.keys() | current.xattrs.keys():
        before, now = old.xattrs.get(key), current.xattrs.get(key)
        ours = now == new.xattrs.get(key) or key == _ACL or (key == _CAPABILITY and now is None)
        value = before if ours else now
        if value is not None:
            result[key] = value
    return result
