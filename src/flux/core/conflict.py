"""Whether an entry is still what a changeset was reviewed against (spec: speculation). Pure decisions on tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from flux.core import manifest, paths
from flux.core.changeset import Change
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType, Manifest, Token

REPORTED_MAX = 10
ABSENT = "absent"

Reason: TypeAlias = Literal["added", "deleted", "type", "content", "attributes", "content_unknown"]


class Difference(StrEnum):
    """The outcome of comparing two fingerprints of one path."""

    EQUAL = "equal"
    CHANGED = "changed"
    NEEDS_CONTENT = "needs_content"


class Conflict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path that is no longer what was reviewed. ``expected`` and ``found`` are phrases for people."""

    path: str
    path_base64: str | None = None
    expected: str
    found: str
    reason: Reason


def differs(expected: Token, found: Token, *, by_content: bool = False) -> Difference:
    """Compare an entry with what it was.

    Equal content and attributes are equal, whatever inode and times say. Two files whose attributes are equal and
    whose inode, size, mtime and ctime are too are taken as equal, unless ``by_content`` demands the digest.
    ``NEEDS_CONTENT`` means that the caller has to hash the file that is there and ask again with its digest.
    """
    if expected == found and not by_content:
        return Difference.EQUAL
    before, now = expected.split(" "), found.split(" ")
    if not _alike(before, now) and manifest.parse(expected).attributes() != manifest.parse(found).attributes():
        return Difference.CHANGED
    if before[_TYPE] != "f":
        return Difference.EQUAL
    known = before[_DIGEST] != _NONE
    if known and now[_DIGEST] != _NONE:
        return Difference.EQUAL if before[_DIGEST] == now[_DIGEST] else Difference.CHANGED
    if by_content and known:
        return Difference.NEEDS_CONTENT
    return Difference.EQUAL if before[_SIZE:_LINKS] == now[_SIZE:_LINKS] else Difference.NEEDS_CONTENT


# Where a token has which field (core.manifest). Tokens are compared as text: it is done for every touched entry.
_TYPE, _SIZE, _MTIME, _INODE, _LINKS, _RDEV, _DIGEST = 0, 4, 5, 7, 8, 9, 12
_NONE = "-"


def _alike(before: list[str], now: list[str]) -> bool:
    """Tell whether two tokens write the same attributes in the same way."""
    same = before[_TYPE:_SIZE] == now[_TYPE:_SIZE] and before[_RDEV:_DIGEST] == now[_RDEV:_DIGEST]
    return same and (before[_TYPE] != "f" or before[_SIZE] == now[_SIZE])


def same_so_far(expected: Token, found: Token) -> bool:
    """Tell whether two files look the same without their content.

    That is inode, size, times and attributes; an expectation that never saw the inode, as that of a revert, goes by
    size, mtime and attributes.
    """
    before, now = expected.split(" "), found.split(" ")
    first, last = (_MTIME, _INODE - 1) if before[_INODE] == "0" else (_SIZE, _LINKS)
    return _alike(before, now) and before[first:last] == now[first:last]


def conflict(path: str, expected: Token | None, found: Token | None) -> Conflict:
    """Describe a path whose entry ``differs``; ``None`` stands for an absent entry."""
    text, encoded = paths.to_json(path)
    return Conflict(
        path=text,
        path_base64=encoded,
        expected=describe(expected),
        found=describe(found),
        reason=reason(expected, found),
    )


def reason(expected: Token | None, found: Token | None) -> Reason:
    """Say in one word in what way an entry differs from what it was."""
    if expected is None:
        return "added"
    if found is None:
        return "deleted"
    before, now = manifest.parse(expected), manifest.parse(found)
    if before.type is not now.type:
        return "type"
    if before.type is EntryType.FILE:
        if before.size != now.size or (None not in (before.digest, now.digest) and before.digest != now.digest):
            return "content"
        if before.attributes() == now.attributes():
            return "content_unknown"
    return "content" if before.target != now.target else "attributes"


def describe(token: Token | None) -> str:
    """Return a short phrase for what a token says, such as ``file, mode 0644, owner 0:0, 12 bytes, sha256:…``."""
    if token is None:
        return ABSENT
    entry = manifest.parse(token)
    parts = [entry.type.value.replace("_", " "), f"mode {entry.mode:04o}", f"owner {entry.uid}:{entry.gid}"]
    if entry.type is EntryType.FILE:
        parts += [f"{entry.size} bytes", entry.digest or "content not read"]
    if entry.target is not None:
        parts.append(f"-> {paths.printable(entry.target)}")
    if entry.xattrs:
        parts.append("xattrs " + " ".join(paths.printable(key) for key, _ in entry.xattrs))
    return ", ".join(parts)


class Touched(msgspec.Struct, frozen=True):
    """What a changeset touches: its ``entries``, their ``ancestors``, and ``trees``, directories that leave whole."""

    entries: Mapping[str, Change]
    ancestors: Collection[str]
    trees: Sequence[str]


def touched(changes: Iterable[Change]) -> Touched:
    """Return what ``conflict_scope: touched`` looks at (spec: speculation)."""
    entries = {change.location: change for change in changes}
    ancestors: set[str] = set()
    for path in entries:
        above = path
        while above != paths.ROOT:
            above = paths.parent(above)
            if above in ancestors:
                break
            ancestors.add(above)
    leaving = {path for path, change in entries.items() if leaves_directory(change)}
    trees = sorted(path for path in leaving if paths.parent(path) not in leaving)
    return Touched(entries, ancestors - entries.keys(), trees)


def leaves_directory(change: Change) -> bool:
    """Tell whether a directory stands at the path before, and none after."""
    before, after = change.before, change.after
    if before is None or before.type is not EntryType.DIRECTORY:
        return False
    return after is None or after.type is not EntryType.DIRECTORY


def becomes_directory(change: Change) -> bool:
    """Tell whether no directory stands at the path before, and one after."""
    before, after = change.before, change.after
    if after is None or after.type is not EntryType.DIRECTORY:
        return False
    return before is None or before.type is not EntryType.DIRECTORY


def refusal(changeset_id: str, conflicts: Sequence[Conflict]) -> FluxError:
    """Return the 409 of a changeset whose base has moved: the first ten paths, all of them counted."""
    first = conflicts[:REPORTED_MAX]
    names = ", ".join(paths.printable(paths.from_json(item.path, item.path_base64)) for item in first)
    more = f" and {len(conflicts) - len(first)} more" if len(conflicts) > len(first) else ""
    details: dict[str, Any] = {
        "reason": "drift",
        "changeset": "approved",
        "count": len(conflicts),
        "conflicts": msgspec.to_builtins(first),
    }
    noun = "path" if len(conflicts) == 1 else "paths"
    return FluxError(
        Code.CONFLICT,
        f"cannot apply changeset {changeset_id}: {len(conflicts)} {noun} changed since it was made ({names}{more}): "
        "nothing was written; rerun it on what is there now, or reject it",
        details,
    )


def merge_applied(current: Manifest, applied: Mapping[str, Token | None], inverse: Iterable[Change]) -> Manifest:
    """Return the base of an inverse changeset: what is there now, but the touched entries as they were applied.

    ``applied`` maps each touched path to its token, or to ``None`` where the apply left nothing. Entries that appeared
    since, below a directory that the inverse takes away, are left out: the inverse then meets them as conflicts and
    does not take them away with the directory.
    """
    leaving = {change.location for change in inverse if leaves_directory(change)}
    result: Manifest = {}
    for path in sorted(current) if leaving else current:
        if path in applied:
            continue
        if leaving and paths.parent(path) in leaving:
            leaving.add(path)
            continue
        result[path] = current[path]
    result.update((path, token) for path, token in applied.items() if token is not None)
    return result
