"""What a run changed: two states of a tree's touched entries in, changes out. Pure (spec: speculation).

Content identity is by digest; an unknown digest is taken as other content. Times are not compared: a rewrite with the
same bytes is no change, and neither is ``touch``. Sizes and times of directories mean nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from flux.core import manifest, paths
from flux.core.changeset import Change, Entry
from flux.core.manifest import EntryType, Fingerprint, Manifest, Token

#: path → all names of its inode, its own included; only paths of inodes that have two or more.
Links: TypeAlias = Mapping[str, frozenset[str]]

_NO_NAMES: frozenset[str] = frozenset()


class Difference(msgspec.Struct, frozen=True):
    """All changes, sorted by path, and the new sockets, which mean nothing without their process."""

    changes: list[Change]
    skipped: list[str]


def links(inodes: Iterable[tuple[str, Hashable]]) -> dict[str, frozenset[str]]:
    """Return the hard-link groups of ``(path, identity of the inode)`` pairs."""
    names: dict[Hashable, list[str]] = {}
    for path, inode in inodes:
        names.setdefault(inode, []).append(path)
    groups = (frozenset(group) for group in names.values() if len(group) > 1)
    return {path: group for group in groups for path in group}


def compare(
    before: Manifest, after: Manifest, touched: Collection[str], *, before_links: Links, after_links: Links
) -> Difference:
    """Compare the touched paths.

    Args:
        before: at least all touched paths that were there, with the digests that are known.
        after: the same for what is there now.
        touched: the paths to compare. No other path has changed, nor has its hard-link group.
        before_links: the groups of all paths of the base.
        after_links: the groups of all touched paths.
    """
    numbers = _numbers(touched, before_links, after_links)
    survivors = {path for path in touched if _is_file(after.get(path)) and _is_file(before.get(path))}
    changes: list[Change] = []
    skipped: list[str] = []
    for path in sorted(touched):
        old, new = before.get(path), after.get(path)
        if new is not None and new.startswith("s ") and not (old or "").startswith("s "):
            skipped.append(path)
            new = None
        if old is None and new is None:
            continue
        group = after_links.get(path, _NO_NAMES)
        relinked = path in survivors and _peers(before_links.get(path, _NO_NAMES), survivors, path) != (group - {path})
        if old == new and not relinked:
            continue
        change = _change(path, old, new, numbers.get(before_links.get(path)), numbers.get(group), relinked)
        if change is not None:
            changes.append(change)
    return Difference(changes, skipped)


def _numbers(touched: Iterable[str], before_links: Links, after_links: Links) -> dict[frozenset[str] | None, int]:
    """Number the groups that touched paths are in; a group that stayed the same has one number on both sides."""
    found: dict[frozenset[str], str] = {}
    for path in touched:
        for group in (before_links.get(path), after_links.get(path)):
            if group is not None and group not in found:
                found[group] = min(group)
    ordered = sorted(found, key=lambda group: (found[group], sorted(group)))
    return {group: number for number, group in enumerate(ordered, 1)}


def _peers(group: frozenset[str], survivors: Collection[str], path: str) -> frozenset[str]:
    """Return the other names of a path's inode that could still be its names: a deleted name is no new link."""
    return frozenset(peer for peer in group if peer != path and peer in survivors)


def _is_file(token: Token | None) -> bool:
    return token is not None and not token.startswith("d ")


def _change(
    path: str,
    old: Token | None,
    new: Token | None,
    before_group: int | None,
    after_group: int | None,
    relinked: bool,
) -> Change | None:
    was = None if old is None else manifest.parse(old)
    now = None if new is None else manifest.parse(new)
    names: tuple[str, ...] = ()
    if was is not None and now is not None:
        names = attributes(was, now)
        if relinked and was.type is now.type:
            names += ("links",)
        if not names:
            return None
    text, encoded = paths.to_json(path)
    return Change(
        path=text,
        path_base64=encoded,
        before=None if was is None else Entry.of(was, link_group=before_group),
        after=None if now is None else Entry.of(now, link_group=after_group),
        attributes=names,
    )


def attributes(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """Return the names of what differs between two entries at one path, links aside."""
    different = {
        "type": before.type is not after.type,
        "content": before.type is after.type is EntryType.FILE and not same_content(before, after),
        "target": before.type is after.type is EntryType.SYMLINK and before.target != after.target,
        "rdev": before.type is after.type and before.rdev != after.rdev,
        "mode": before.mode != after.mode and EntryType.SYMLINK not in (before.type, after.type),
        "owner": (before.uid, before.gid) != (after.uid, after.gid),
        "xattrs": before.xattrs != after.xattrs,
    }
    return tuple(name for name, differs in different.items() if differs)


def same_content(before: Fingerprint, after: Fingerprint) -> bool:
    """Tell whether two regular files are known to hold the same bytes."""
    return before.size == after.size and before.digest is not None and before.digest == after.digest


def may_match(before: Token | None, after: Token | None) -> bool:
    """Tell whether two entries are regular files of one size, so that only their digests can tell them apart."""
    if before is None or after is None or not (before.startswith("f ") and after.startswith("f ")):
        return False
    return size(before) == size(after)


def size(token: Token) -> int:
    """Return the size that a token says, in bytes."""
    return int(token.split(" ", 5)[4])


def inode(token: Token) -> str:
    """Return the inode number that a token says."""
    return token.split(" ", 8)[7]
