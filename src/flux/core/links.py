"""Which names keep their inode when a changeset is applied, and where a new inode comes from. Pure.

A hard-link group is one inode with several names. After the apply the groups are those of the changeset: each group
keeps at most one of the inodes that were there, every other name of it is linked to that inode or to one new inode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from flux.core import paths
from flux.core.changeset import Change, Entry
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType, Manifest, Token

Origin: TypeAlias = Literal["stay", "gone", "made", "blob", "copy", "move", "same", "kept"]


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one changed path.

    ``stay``: the inode there stays (``value`` identifies it). ``gone``: nothing is there afterwards. The others are new
    entries: ``made`` from the entry alone, from the ``blob`` named ``value``, a ``copy`` of the content at the path
    ``value``, the file at ``value`` itself, which leaves its name unaltered (``move``), another name of the new entry
    at ``value`` (``same``), another name of the inode that stays at ``value`` (``kept``).
    """

    kind: Origin
    value: str = ""


_GONE = Fate("gone")
_MADE = Fate("made")
_CONTENT = frozenset({"content", "target", "rdev", "type"})


def fates(ordered: Sequence[Change], base: Manifest) -> dict[str, Fate]:
    """Return the fate of every changed path; ``ordered`` is sorted by path.

    Raises:
        FluxError: ``not_applicable`` if the content of a file is not staged.
    """
    stays = _stays(ordered, base)
    groups: dict[Hashable, list[Change]] = defaultdict(list)
    result: dict[str, Fate] = {}
    for change in ordered:
        path, after = change.location, change.after
        if path in stays:
            result[path] = Fate("stay", stays[path])
        elif after is None:
            result[path] = _GONE
        if after is not None and after.type is not EntryType.DIRECTORY:
            groups[_group(change)].append(change)
        elif after is not None and path not in stays:
            result[path] = _MADE
    movable = _Movable(ordered, base, stays)
    for members in groups.values():
        _settle_group(members, stays, movable, result)
    return result


def _group(change: Change) -> Hashable:
    """Return the identity of the inode that the path has afterwards."""
    after = change.after
    return change.location if after is None or after.link_group is None else after.link_group


def _settle_group(
    members: Sequence[Change], stays: Mapping[str, str], movable: _Movable, result: dict[str, Fate]
) -> None:
    anchor = next((change.location for change in members if change.location in stays), None)
    first = None if anchor is not None else next((change for change in members if change.staged), members[0])
    for change in members:
        path = change.location
        if path in stays:
            continue
        if anchor is not None:
            result[path] = Fate("kept", anchor)
        elif joins(change) and change.staged is not None:
            result[path] = Fate("kept", change.staged.reference_path or "")
        elif first is not None and change is not first:
            result[path] = Fate("same", first.location)
        else:
            result[path] = _origin(change, movable)


def joins(change: Change) -> bool:
    """Tell whether a new entry is one more name of the unchanged file that its content is a reference to.

    Only the inverse of a removed hard link says so: the names that remained are none of its changes.
    """
    before, after, staged = change.before, change.after, change.staged
    if after is None or staged is None or staged.reference is None or "links" not in change.attributes:
        return False
    return before is None or before.type is not after.type


def _origin(change: Change, movable: _Movable) -> Fate:
    """Return where the content of a new inode comes from."""
    after, staged = change.after, change.staged
    if staged is not None and staged.blob is not None:
        return Fate("blob", staged.blob)
    source = None if staged is None else staged.reference_path
    if source is not None:
        return Fate("move" if movable.take(source, change) else "copy", source)
    if after is None or after.type not in (EntryType.FILE, EntryType.SOCKET):
        return _MADE
    if after.type is EntryType.FILE and change.before is not None and not _CONTENT & set(change.attributes):
        return Fate("copy", change.location)
    if after.type is EntryType.FILE and after.size == 0:
        return _MADE
    raise FluxError(
        Code.NOT_APPLICABLE,
        f"cannot apply: the content of {paths.printable(change.location)} is not staged: reject the changeset and "
        "narrow its paths",
    )


class _Movable:
    """The files that lose their only name in this changeset: each can become another path's file as it is."""

    def __init__(self, ordered: Iterable[Change], base: Manifest, stays: Mapping[str, str]) -> None:
        self._leaving = {
            change.location: change for change in ordered if change.before and change.location not in stays
        }
        self._base = base

    def take(self, source: str, change: Change) -> bool:
        """Tell whether ``source`` may become ``change``'s file unaltered, and if so give it to nobody else."""
        leaving, after = self._leaving.get(source), change.after
        token = self._base.get(source)
        if leaving is None or leaving.before is None or after is None or token is None:
            return False
        if int(token.split(" ", 9)[8]) != 1 or _body(leaving.before) != _body(after):
            return False
        del self._leaving[source]
        return True


def _body(entry: Entry) -> tuple[object, ...]:
    return (
        entry.type, entry.mode, entry.uid, entry.gid, entry.size, entry.mtime_ns, entry.digest, entry.xattrs,
    )  # fmt: skip


def _stays(ordered: Sequence[Change], base: Manifest) -> dict[str, str]:
    """Return the changed paths whose inode stays in place, each with the identity of that inode."""
    result: dict[str, str] = {}
    owners: dict[str, Hashable] = {}
    contested: list[Change] = []
    for change in ordered:
        if not _retains(change):
            continue
        if "links" in change.attributes:
            contested.append(change)
            continue
        inode = _inode(change.location, base)
        result[change.location] = inode
        owners[inode] = _group(change)
    if contested:
        listed = {change.location for change in ordered}
        result.update(_award(contested, owners, listed, base))
    return result


def _retains(change: Change) -> bool:
    before, after = change.before, change.after
    return (
        before is not None and after is not None and not _CONTENT & set(change.attributes) and before.type == after.type
    )


def _inode(path: str, base: Manifest) -> str:
    """Return what identifies the inode at ``path``: its number if it has several names, else its only name."""
    return link_of(base.get(path, "")) or path


def _award(
    contested: Sequence[Change], owners: dict[str, Hashable], listed: set[str], base: Manifest
) -> dict[str, str]:
    """Give each contested inode to one group, and each group at most one inode.

    An inode goes to the group that is on it unasked, else to an unchanged path that has it too, else to the group with
    the most names on it.
    """
    inodes = {change.location: _inode(change.location, base) for change in contested}
    names: dict[tuple[str, Hashable], list[str]] = defaultdict(list)
    for change in contested:
        names[inodes[change.location], _group(change)].append(change.location)
    served = set(owners.values())
    for inode in _other_names(set(inodes.values()), listed, base):
        owners.setdefault(inode, None)
    result: dict[str, str] = {}
    for (inode, group), members in sorted(names.items(), key=lambda item: (-len(item[1]), item[1])):
        if inode not in owners and group not in served:
            owners[inode] = group
            served.add(group)
        if owners.get(inode) == group:
            result.update((path, inode) for path in members)
    return result


def _other_names(inodes: set[str], listed: set[str], base: Manifest) -> set[str]:
    """Return those of ``inodes`` that an unchanged path has too: they are that path's to keep."""
    return {inode for path, token in base.items() if (inode := link_of(token)) in inodes and path not in listed}


def link_of(token: Token) -> str:
    """Return the inode of an entry that has more names than one, as its token writes it; empty for every other."""
    fields = token.split(" ", 9)
    return fields[7] if len(fields) > 9 and fields[0] != "d" and fields[8] != "1" else ""
