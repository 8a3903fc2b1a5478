"""Capture: from what a run left behind to a changeset's contents (spec: speculation).

The order matters. Everything is read, as the run saw it, before the first content is moved out of the throwaway tree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from flux.core import diff, manifest, paths
from flux.core.changeset import Change, Changes, Discarded, Noted, Unstaged
from flux.core.diff import Difference
from flux.core.limits import Caps
from flux.core.manifest import Manifest, Token
from flux.ports.files import Files
from flux.trees.contents import BaseContents, RunContents, is_file
from flux.trees.engines.tree import Throwaway
from flux.trees.observed import Observed
from flux.trees.preimages import keep_preimages
from flux.trees.scan import Scan, rescan, tops
from flux.trees.stage import Stager, unstaged

OUTSIDE = "workspace, outside the paths"


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture, and the open directories that take contents and pre-images."""

    paths: Sequence[str]
    blobs: int
    preimages: int
    caps: Caps
    files: Files


class Capture(msgspec.Struct, kw_only=True):
    """What a run changed.

    ``base``: the manifest from before the run, of what lies in the paths, with the digests of touched files.
    ``base_changes``: what changed in the workspace itself during the run. ``discarded``: what the run wrote in the
    workspace outside the paths.
    """

    changes: Changes
    unstaged: list[Unstaged]
    skipped: list[Noted]
    not_captured: list[Noted]
    discarded: list[Discarded]
    base: Manifest
    base_changes: list[str]


def capture(
    tree: Throwaway, after: int, root: int, base: Scan, request: CaptureRequest, *, skip: Collection[str] = ()
) -> Capture:
    """Find and stage what a run changed; see ``RunTree.capture``."""
    moved = rescan(root, (paths.ROOT,), base.manifest, skip=skip)
    observed = tree.observe(after)
    work = _Capturing(tree, after, root, base, observed, moved, request, skip)
    try:
        return work.run()
    finally:
        work.close()


class _Capturing:
    def __init__(
        self,
        tree: Throwaway,
        after: int,
        root: int,
        base: Scan,
        observed: Observed,
        moved: list[str],
        request: CaptureRequest,
        skip: Collection[str],
    ) -> None:
        self._base = base
        self._observed = observed
        self._moved = moved
        self._request = request
        self._hidden = [*base.nested, *skip]
        self._tops = tops(request.paths)
        self._sizes: set[int] | None = None
        self._base_contents = BaseContents(root, observed.before, moved)
        self._run_contents = RunContents(observed, tree.held, after, self._base_contents, request.files)

    def close(self) -> None:
        self._run_contents.close()

    def run(self) -> Capture:
        inside, outside = self._divide()
        self._hash(inside)
        found = self._compare(inside)
        discarded = self._discarded(outside)
        request = self._request
        keep_preimages(found.changes, self._base_contents, request.preimages, request.caps, request.files)
        changes, refused = self._stage(found.changes)
        return Capture(
            changes=Changes.of(changes, unchanged=self._unchanged(changes)),
            unstaged=refused,
            skipped=[_noted(path, "a socket means nothing without its process") for path in found.skipped],
            not_captured=[_noted(path, "another mount inside the workspace") for path in sorted(self._base.nested)],
            discarded=discarded,
            base=self._covered_base(),
            base_changes=self._moved,
        )

    def _divide(self) -> tuple[set[str], set[str]]:
        """Divide what was touched into what lies in the paths and what does not; leave out what is neither."""
        touched = self._observed.touched
        if self._hidden:
            touched = {path for path in touched if not any(paths.is_within(path, place) for place in self._hidden)}
        if self._tops == [paths.ROOT]:
            return touched, set()
        inside = {path for path in touched if self._is_covered(path)}
        return inside, touched - inside

    def _is_covered(self, path: str) -> bool:
        return any(paths.is_within(path, top) for top in self._tops)

    def _hash(self, touched: Collection[str]) -> None:
        """Put digests where a decision needs them: on both sides of what may be equal, and on what will be staged."""
        before, after = self._observed.before, self._observed.after
        for path in sorted(touched):
            old, new = before.get(path), after.get(path)
            if old == new:
                continue
            if is_file(old):
                self._base_contents.digest(path)
            if new is not None and is_file(new) and self._is_worth_hashing(path, old, new):
                digest = self._run_contents.digest(path)
                if digest is not None:
                    after[path] = manifest.with_digest(new, digest)

    def _is_worth_hashing(self, path: str, old: Token | None, new: Token) -> bool:
        """Leave alone what can be neither staged nor found in the base: a run may fill a disk with it."""
        if diff.size(new) <= self._request.caps.file_bytes or diff.may_match(old, new):
            return True
        return path in self._observed.origins or diff.size(new) in self._base_sizes()

    def _base_sizes(self) -> set[int]:
        if self._sizes is None:
            self._sizes = {diff.size(token) for token in self._observed.before.values() if token.startswith("f ")}
        return self._sizes

    def _compare(self, touched: Collection[str]) -> Difference:
        observed = self._observed
        return diff.compare(
            observed.before,
            observed.after,
            touched,
            before_links=observed.before_links,
            after_links=observed.after_links,
        )

    def _stage(self, changes: list[Change]) -> tuple[list[Change], list[Unstaged]]:
        request = self._request
        stager = Stager(
            self._observed.before,
            self._base_contents,
            self._run_contents,
            self._observed,
            request.blobs,
            request.caps,
            request.files,
        )
        stager.know(changes)
        staged = [stager.stage(change) for change in changes]
        return staged, sorted([*stager.unstaged, *self._refused(changes)], key=lambda item: item.location)

    def _refused(self, changes: list[Change]) -> list[Unstaged]:
        """Return what can be named but not be carried: around mounts, and where the base could not be read."""
        found: list[Unstaged] = []
        closed = [path for path, _ in self._base.unreadable]
        for change in changes:
            path = change.location
            replaced = (change.before is not None and "type" in change.attributes) or change.after is None
            if replaced and any(paths.is_within(place, path) for place in self._base.nested):
                found.append(unstaged(path, "something is mounted in it, so it cannot be replaced or deleted"))
            elif any(paths.is_within(path, place) and (path != place or replaced) for place in closed):
                found.append(unstaged(path, "what was there before could not be read"))
        return found

    def _discarded(self, outside: Collection[str]) -> list[Discarded]:
        if not outside:
            return []
        found = self._compare(outside).changes
        size = sum(change.after.size for change in found if change.after is not None)
        return [Discarded(place=OUTSIDE, entries=len(found), size=size)] if found else []

    def _unchanged(self, changes: list[Change]) -> int:
        return len(self._covered_base()) - sum(1 for change in changes if change.before is not None)

    def _covered_base(self) -> Manifest:
        known = self._base.manifest
        if self._tops == [paths.ROOT]:
            return known
        return {path: token for path, token in known.items() if self._is_covered(path)}


def _noted(path: str, reason: str) -> Noted:
    text, encoded = paths.to_json(path)
    return Noted(path=text, path_base64=encoded, reason=reason)
