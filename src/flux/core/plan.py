"""From changes to the steps of an apply (spec: speculation). Pure: decides everything, touches nothing.

The steps stand on disjoint paths, the top-most ones. What is wholly new is built in a *slot* of the area and installed
by one rename, whatever it contains; what goes leaves whole into a slot by one rename; what is replaced changes places
with its slot. Changes of attributes alone are amended in place, once for each inode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from flux.core import paths
from flux.core.changeset import Change, Entry
from flux.core.errors import Code, FluxError
from flux.core.links import Fate, fates, link_of
from flux.core.manifest import EntryType, Fingerprint, Manifest, Token

StepKind: TypeAlias = Literal["create", "replace", "remove"]


class Step(msgspec.Struct, frozen=True):
    """One rename. Its slot is its position in the plan."""

    kind: StepKind
    path: str


class New(msgspec.Struct, frozen=True):
    """An entry to be built in a slot before anything is installed; ``place`` is its path in the area."""

    place: str
    path: str
    entry: Entry
    fate: Fate


class Amend(msgspec.Struct, frozen=True):
    """Attributes to be changed in place, on the inode that stands at ``path``."""

    path: str
    entry: Entry


class Plan(msgspec.Struct, frozen=True):
    """What an apply does.

    ``steps``: removals first, so that a name that differs in case only is free again where the file system folds it.
    ``new``: sorted by path, directories before what they hold. ``amends``: other entries first, then directories, the
    deepest first. ``displaced``: for each step the expected entries that leave with it. ``live``: the displaced files
    whose inode stays in the workspace, each with a name that it has there. ``stays``: the changed paths whose inode
    stays where it is.
    """

    steps: list[Step]
    new: list[New]
    amends: list[Amend]
    displaced: list[list[str]]
    live: dict[str, str]
    stays: Collection[str]


def make_plan(changes: Sequence[Change], base: Manifest) -> Plan:
    """Return the plan that applies ``changes`` to the tree that ``base`` describes.

    Raises:
        FluxError: ``not_applicable`` if contents are missing, ``invalid`` if the changes contradict each other or the
            base (a directory that goes while something in it stays).
    """
    ordered = sorted(changes, key=lambda change: change.location)
    destiny = fates(ordered, base)
    tops, owner = _tops(ordered, destiny)
    _refuse_leftovers(tops, owner, base)
    order = sorted(tops, key=lambda path: (_ORDER[tops[path]], path))
    slots = {path: slot for slot, path in enumerate(order)}
    displaced: list[list[str]] = [[] for _ in order]
    new: list[New] = []
    for change in ordered:
        path = change.location
        top = owner.get(path)
        if top is None:
            continue
        if change.before is not None:
            displaced[slots[top]].append(path)
        if change.after is not None:
            new.append(New(f"/{slots[top]}{path[len(top) :]}", path, change.after, destiny[path]))
    steps = [Step(tops[path], path) for path in order]
    stays = {path for path, fate in destiny.items() if fate.kind == "stay"}
    return Plan(steps, new, _amends(ordered, owner, destiny), displaced, _live(ordered, owner, destiny, base), stays)


_ORDER: dict[StepKind, int] = {"remove": 0, "replace": 1, "create": 2}


def _tops(ordered: Iterable[Change], destiny: Mapping[str, Fate]) -> tuple[dict[str, StepKind], dict[str, str]]:
    """Return the top-most paths with what happens there, and for each moved path the top that it belongs to."""
    tops: dict[str, StepKind] = {}
    owner: dict[str, str] = {}
    for change in ordered:
        path = change.location
        above = owner.get(paths.parent(path)) if path != paths.ROOT else None
        if above is not None:
            _refuse_contradiction(change, tops[above])
            owner[path] = above
        elif change.before is None:
            owner[path], tops[path] = path, "create"
        elif change.after is None:
            owner[path], tops[path] = path, "remove"
        elif destiny[path].kind != "stay":
            owner[path], tops[path] = path, "replace"
        if path == paths.ROOT and path in tops:
            raise FluxError(Code.INVALID, "cannot apply: the workspace's root itself can be amended, not replaced")
    return tops, owner


def _refuse_contradiction(change: Change, kind: StepKind) -> None:
    stays = change.before is not None and change.after is not None
    if stays or (kind == "create" and change.before is not None) or (kind == "remove" and change.after is not None):
        raise FluxError(
            Code.INVALID,
            f"cannot apply: {paths.printable(change.location)} stays while the directory around it does not",
        )


def _refuse_leftovers(tops: Mapping[str, StepKind], owner: Mapping[str, str], base: Manifest) -> None:
    leaving = {path for path, top in owner.items() if tops[top] != "create"}
    if not leaving:
        return
    for path in base:
        if path not in owner and paths.parent(path) in leaving:
            raise FluxError(
                Code.INVALID,
                f"cannot apply: {paths.printable(path)} would go with its directory, but the changeset does not delete "
                "it: approve the whole changeset, or reject it",
            )


def _amends(ordered: Sequence[Change], owner: Mapping[str, str], destiny: Mapping[str, Fate]) -> list[Amend]:
    files: list[Amend] = []
    directories: list[Amend] = []
    seen: set[object] = set()
    for change in ordered:
        path, before, after = change.location, change.before, change.after
        if path in owner or before is None or after is None or not _amended(before, after):
            continue
        inode = destiny[path].value
        if inode and inode in seen:
            continue
        seen.add(inode)
        (directories if after.type is EntryType.DIRECTORY else files).append(Amend(path, after))
    directories.sort(key=lambda amend: (-amend.path.count("/"), amend.path))
    return (
        files
        + [amend for amend in directories if amend.path != paths.ROOT]
        + [amend for amend in directories if amend.path == paths.ROOT]
    )


def _live(
    ordered: Iterable[Change], owner: Mapping[str, str], destiny: Mapping[str, Fate], base: Manifest
) -> dict[str, str]:
    """Return the displaced files that keep a name in the workspace: as the file of another path, or as a hard link."""
    result = {fate.value: path for path, fate in destiny.items() if fate.kind == "move"}
    leaving = (change.location for change in ordered if change.location in owner)
    inodes = {path: link_of(base.get(path, "")) for path in leaving}
    linked = {path: inode for path, inode in inodes.items() if inode}
    if linked:
        wanted = set(linked.values())
        names = {
            inode: path for path, token in base.items() if path not in owner and (inode := link_of(token)) in wanted
        }
        result.update((path, names[inode]) for path, inode in linked.items() if inode in names)
    return result


def _amended(before: Entry, after: Entry) -> bool:
    return (before.mode, before.uid, before.gid, before.mtime_ns, before.xattrs) != (
        after.mode,
        after.uid,
        after.gid,
        after.mtime_ns,
        after.xattrs,
    )


def implied_directories(absent: Iterable[str], like: Entry) -> list[Change]:
    """Return the additions of directories that a changeset needs and neither holds nor finds: "parents are created"."""
    return [_addition(path, like) for path in sorted(set(absent))]


def _addition(path: str, like: Entry) -> Change:
    text, encoded = paths.to_json(path)
    return Change(path=text, path_base64=encoded, after=like, attributes=("type",))


def kept_bytes(changes: Iterable[Change]) -> int:
    """Return how many bytes of displaced content an apply of ``changes`` keeps for a revert."""
    seen: set[int] = set()
    total = 0
    for change in changes:
        before, after = change.before, change.after
        if before is None or before.type is not EntryType.FILE:
            continue
        if after is not None and after.type is EntryType.FILE and "content" not in change.attributes:
            continue
        if before.link_group is not None:
            if before.link_group in seen:
                continue
            seen.add(before.link_group)
        total += before.size
    return total


def revertible(changes: Sequence[Change], revert_bytes: int, *, same_mount: bool) -> tuple[bool, str | None]:
    """Tell, before anything is applied, whether the apply could be reverted, and why not.

    Args:
        changes: all changes of the changeset.
        revert_bytes: what may be kept (``Caps.revert_bytes``).
        same_mount: whether the state directory lies on the workspace's mount, so that keeping is free of copying.
    """
    if not same_mount and any(_lost_in_copy(change) for change in changes):
        return False, "a socket that it deletes cannot be copied into the state directory"
    size = kept_bytes(changes)
    if size <= revert_bytes:
        return True, None
    return False, f"it replaces {size} bytes of content, and at most {revert_bytes} are kept (revert_max_mib)"


def _lost_in_copy(change: Change) -> bool:
    before, after = change.before, change.after
    return before is not None and before.type is EntryType.SOCKET and (after is None or after.type != before.type)


def expected_tokens(displaced: Iterable[str], base: Manifest) -> dict[str, Token]:
    """Return what the base says about the paths that leave with one step."""
    return {path: base[path] for path in displaced if path in base}


# Numbers that no inode has: names of one group share one, which is all that a plan asks of them.
_GROUP_INODES = 1 << 62


def token_of(entry: Entry) -> Token:
    """Return the token of an entry that was, or is to be, applied. Its inode and its ctime are not known."""
    is_directory = entry.type is EntryType.DIRECTORY
    links = 1 if entry.link_group is None else 2
    return Fingerprint(
        type=entry.type,
        mode=entry.mode_bits,
        uid=entry.uid,
        gid=entry.gid,
        size=0 if is_directory else entry.size,
        mtime_ns=entry.mtime_ns,
        ctime_ns=0,
        inode=0 if entry.link_group is None else _GROUP_INODES + entry.link_group,
        links=0 if is_directory else links,
        rdev=entry.rdev,
        target=entry.link_target,
        xattrs=tuple(sorted(entry.xattr_values.items())),
        digest=entry.digest,
    ).token()
