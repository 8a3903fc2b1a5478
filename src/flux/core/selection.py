"""Partial approval: the part of a changeset that is kept, closed so that it can stand alone (spec: speculation).

The closure adds to what was named:

- everything below a named directory,
- the directories that a kept entry needs and that the changeset makes,
- what a directory that goes away or stops being one holds,
- all names of a hard-linked file, as it was before and as it is after.

A kept entry whose content is a reference to a base entry needs nothing more: the reference names content by digest,
and apply takes it before it changes the entry that holds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from flux.core import paths
from flux.core.changeset import Change, Changes, Entry, Unstaged
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType


def close(changes: Changes, only: Sequence[str], unstaged: Sequence[Unstaged] = ()) -> Changes:
    """Return the changes that ``only`` names, with all that they need; the rest counts as unchanged.

    Args:
        changes: the whole changeset.
        only: exact workspace paths; a directory stands for all below it.
        unstaged: what the changeset could not carry; naming such a path is no mistake.

    Raises:
        FluxError: ``invalid``, naming the paths at and below which nothing changed, or if nothing was named.
    """
    index = _Index(changes)
    chosen: dict[str, Change] = {}
    waiting = [change for path in _named(index, only, unstaged) for change in index.within(path)]
    while waiting:
        change = waiting.pop()
        if change.location not in chosen:
            chosen[change.location] = change
            waiting.extend(index.needed_by(change))
    left = sum(1 for path, change in index.by_path.items() if path not in chosen and change.before is not None)
    return Changes.of(list(chosen.values()), unchanged=changes.unchanged + left)


def close_unstaged(unstaged: Sequence[Unstaged], only: Sequence[str], chosen: Changes) -> list[Unstaged]:
    """Return the unstaged entries that the selection keeps, and that therefore still block an apply."""
    kept = {change.location for change in chosen.every()}
    named = [paths.normalise(path) for path in only]
    return [
        entry
        for entry in unstaged
        if entry.location in kept or any(paths.is_within(entry.location, path) for path in named)
    ]


def _named(index: _Index, only: Sequence[str], unstaged: Sequence[Unstaged]) -> list[str]:
    named = [paths.normalise(path) for path in only]
    if not named:
        raise FluxError(Code.INVALID, "cannot approve a part of nothing: name at least one changed path")
    unknown = [
        path
        for path in named
        if next(iter(index.within(path)), None) is None
        and not any(paths.is_within(entry.location, path) for entry in unstaged)
    ]
    if unknown:
        shown = ", ".join(paths.printable(path) for path in unknown[:10])
        raise FluxError(
            Code.INVALID,
            f"cannot approve only {shown}: the changeset changes nothing there; name paths that it lists",
            {"paths": [paths.printable(path) for path in unknown]},
        )
    return named


class _Index:
    """The changes by path, by place in the tree and by hard-link group."""

    def __init__(self, changes: Changes) -> None:
        self.by_path = {change.location: change for change in changes.every()}
        # Sorted by components, everything below a directory follows it without a gap.
        self._order = sorted(self.by_path, key=_components)
        self._keys = [_components(path) for path in self._order]
        self._groups: dict[tuple[str, int], list[Change]] = defaultdict(list)
        for change in self.by_path.values():
            for group in _groups(change):
                self._groups[group].append(change)

    def within(self, path: str) -> Iterator[Change]:
        """Yield the changes at and below ``path``."""
        key = _components(path)
        for place in range(bisect_left(self._keys, key), len(self._keys)):
            if self._keys[place][: len(key)] != key:
                return
            yield self.by_path[self._order[place]]

    def needed_by(self, change: Change) -> Iterator[Change]:
        """Yield the changes without which ``change`` cannot be applied."""
        if change.after is not None:
            yield from self._new_parents(change.location)
        if _is_directory(change.before) and not _is_directory(change.after):
            yield from self.within(change.location)
        for group in _groups(change):
            yield from self._groups[group]

    def _new_parents(self, path: str) -> Iterator[Change]:
        """Yield the directories above ``path`` that only this changeset makes."""
        for ancestor in paths.ancestors(path):
            change = self.by_path.get(ancestor)
            if change is not None and _is_directory(change.after) and not _is_directory(change.before):
                yield change


def _components(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.type is EntryType.DIRECTORY


def _groups(change: Change) -> Iterable[tuple[str, int]]:
    sides = (("before", change.before), ("after", change.after))
    return [(side, entry.link_group) for side, entry in sides if entry is not None and entry.link_group is not None]
