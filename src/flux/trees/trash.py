"""What is kept after the commit so that the apply can be reverted, and the clearing of everything else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from flux.core import paths
from flux.failpoints import Point
from flux.ports.files import Files
from flux.trees import area
from flux.trees.area import TRASH, Spot, in_area, remove_tree
from flux.trees.beneath import DIRECTORY, open_regular
from flux.trees.journal import Begun, Journal

_STEP = Point.APPLY_CLEAN
_DRAFT = "trash.new"


class Applied(msgspec.Struct, frozen=True):
    """What an apply left behind: whether it can be reverted, and why not."""

    revertible: bool
    reason: str | None = None


class _Displaced(msgspec.Struct):
    """One entry in the area; ``path`` in it, ``inode`` and ``size`` of a regular file."""

    path: str
    status: os.stat_result


def keep(files: Files, directory: int, root: int, record: Journal, revert_bytes: int) -> Applied:
    """Keep the displaced entries as ``trash`` and clear the area. Idempotent; call it after the commit only.

    Where the area lies in the changeset's directory keeping is one rename. Else contents are copied there, if they are
    not more than ``revert_bytes``.
    """
    begun = record.begun
    spot = area.spot(begun.place, begun.changeset_id, directory, root)
    inside = area.open_existing(spot)
    if inside is None:
        return Applied(True)
    try:
        _drop_live(files, inside, begun)
        displaced = list(_walk(inside))
        applied = _judge(displaced, revert_bytes)
        if begun.place == "workspace" and displaced and applied.revertible:
            applied = _copy_out(files, directory, inside, displaced)
    finally:
        os.close(inside)
    if begun.place == "changeset" and displaced and applied.revertible:
        files.rename(_STEP, *spot, directory, TRASH)
    else:
        remove_tree(files, _STEP, *spot)
    if begun.place == "workspace":
        area.settle_root(files, _STEP, root, begun)
    if begun.live:  # names inside the trash went as well
        files.sync_filesystem(_STEP, directory)
    files.sync_file(_STEP, spot[0])
    return applied


def drop(files: Files, directory: int) -> None:
    """Remove the trash of a changeset, which cannot be reverted any more."""
    for name in (TRASH, _DRAFT):
        remove_tree(files, _STEP, directory, name)


def _judge(displaced: list[_Displaced], revert_bytes: int) -> Applied:
    sizes = {item.status.st_ino: item.status.st_size for item in displaced if stat.S_ISREG(item.status.st_mode)}
    size = sum(sizes.values())
    if size <= revert_bytes:
        return Applied(True)
    return Applied(False, f"it replaced {size} bytes of content, and at most {revert_bytes} are kept (revert_max_mib)")


def _drop_live(files: Files, inside: int, begun: Begun) -> None:
    """Remove names whose inode has a name in the workspace: they would show there as one hard link too many."""
    slots = {step.path: slot for slot, step in enumerate(begun.steps)}
    directories = in_area(inside)
    try:
        for raw, _ in begun.live:
            place = place_of(raw, slots)
            if place is None:
                continue
            try:
                directory, name = directories.parent(place)
                os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            files.unlink(_STEP, directory, name)
    finally:
        directories.close()


def place_of(path: bytes, slots: dict[bytes, int]) -> str | None:
    """Return where in the area (or the trash) the entry is that was displaced from ``path``."""
    top = path
    while top and top not in slots:
        top = top.rpartition(b"/")[0]
    return f"/{slots[top]}{paths.from_bytes(path[len(top) :])}" if top else None


def _walk(inside: int) -> Iterator[_Displaced]:
    """Yield every entry of the area, directories before what they hold."""
    pending = ["/"]
    directories = area.Directories(inside, limit=1, uses=1, flags=DIRECTORY)
    try:
        while pending:
            at = pending.pop()
            try:
                listing = list(os.scandir(directories.at(at)))
            except PermissionError:
                continue
            for item in listing:
                found = _Displaced(paths.join(at, item.name), item.stat(follow_symlinks=False))
                yield found
                if stat.S_ISDIR(found.status.st_mode):
                    pending.append(found.path)
    finally:
        directories.close()


def _copy_out(files: Files, directory: int, inside: int, displaced: list[_Displaced]) -> Applied:
    remove_tree(files, _STEP, directory, _DRAFT)
    try:
        files.make_directory(_STEP, directory, _DRAFT)
        draft = os.open(_DRAFT, DIRECTORY, dir_fd=directory)
        try:
            _copy_all(files, draft, inside, displaced)
            files.sync_filesystem(_STEP, draft)
        finally:
            os.close(draft)
        files.rename(_STEP, directory, _DRAFT, directory, TRASH)
        files.sync_file(_STEP, directory)
    except OSError as error:
        remove_tree(files, _STEP, directory, _DRAFT)
        return Applied(False, f"the replaced content could not be kept: {error.strerror}")
    return Applied(True)


def _copy_all(files: Files, draft: int, inside: int, displaced: list[_Displaced]) -> None:
    """Copy directories and contents; what else there is about an entry, the changeset itself knows."""
    directories = in_area(draft)
    copied: dict[int, str] = {}
    try:
        for item in displaced:
            spot = directories.parent(item.path)
            if stat.S_ISDIR(item.status.st_mode):
                files.make_directory(_STEP, *spot)
            elif stat.S_ISREG(item.status.st_mode) and item.status.st_ino in copied:
                files.link(_STEP, *directories.parent(copied[item.status.st_ino]), *spot)
            elif stat.S_ISREG(item.status.st_mode):
                _copy_one(files, inside, item.path, spot)
                copied[item.status.st_ino] = item.path
    finally:
        directories.close()


def _copy_one(files: Files, inside: int, path: str, spot: Spot) -> None:
    source = open_regular(inside, path)
    try:
        target = files.create(_STEP, *spot)
        try:
            files.copy(_STEP, source, target)
        finally:
            os.close(target)
    finally:
        os.close(source)
