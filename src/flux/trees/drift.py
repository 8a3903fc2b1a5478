"""The drift check: is the sandbox still what the changeset was reviewed against (spec: speculation)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from flux.core import conflict, manifest, paths
from flux.core.changeset import Change, ConflictScope
from flux.core.conflict import Conflict, Difference
from flux.core.manifest import Manifest, Token
from flux.trees import _native
from flux.trees.area import Directories, in_workspace
from flux.trees.scan import Scan, entry, rescan, scan, with_content

UNREADABLE = "unreadable"


def find_conflicts(
    root: int,
    base: Manifest,
    changes: Sequence[Change],
    *,
    paths: Sequence[str],
    scope: ConflictScope,
    skip: Collection[str] = (),
    later: Collection[str] = (),
) -> list[Conflict]:
    """Return every path that is not as the changeset expects it, sorted.

    Args:
        root: the workspace's root, open.
        base: the reviewed manifest, with the digests of the touched files.
        changes: all changes of the changeset.
        paths: what the changeset covers.
        scope: ``all`` looks at everything in ``paths``; ``touched`` at the touched entries, their ancestors, and the
            whole contents of directories that go.
        skip: workspace paths that do not belong to the workspace.
        later: paths that the caller compares by content itself, once it has displaced them; here their content is read
            only if size or times have changed.
    """
    quick = {**base, **{path: _without_digest(base[path]) for path in later if base.get(path, "").startswith("f ")}}
    found: dict[str, Conflict] = {}
    if scope == "all":
        _judge(root, base, quick, rescan(root, paths, quick, skip=skip), found)
        return [found[path] for path in sorted(found)]
    touched = conflict.touched(changes)
    if touched.trees:
        _judge(root, base, quick, rescan(root, touched.trees, quick, skip=skip), found)
    present = [path for path, change in touched.entries.items() if change.before is not None and path in base]
    _judge(root, base, quick, [*present, *(path for path in touched.ancestors if path in base)], found)
    _judge_absent(root, touched.entries, found)
    return [found[path] for path in sorted(found)]


def _without_digest(token: Token) -> Token:
    return manifest.with_digest(token, "-")


def _judge(root: int, base: Manifest, quick: Manifest, candidates: Collection[str], found: dict[str, Conflict]) -> None:
    """Compare paths, by content where the base knows it; ``quick`` lacks the digests of what is compared later."""
    ordered = sorted(path for path in candidates if path not in found)
    for path, token in zip(ordered, _native.lookup(root, ordered), strict=True):
        expected, now = base.get(path), token or None
        if expected is None or now is None:
            if expected is not now:
                found[path] = conflict.conflict(path, expected, now)
            continue
        if quick[path] is not expected and conflict.same_so_far(expected, now):
            continue
        known = not expected.endswith(" -")
        if known and conflict.differs(expected, now, by_content=True) is Difference.NEEDS_CONTENT:
            now = with_content(root, path, now)
        if conflict.differs(expected, now, by_content=known) is not Difference.EQUAL:
            found[path] = conflict.conflict(path, expected, now)


def _judge_absent(root: int, entries: Mapping[str, Change], found: dict[str, Conflict]) -> None:
    """A path that is expected to be absent must be absent by ``lstat``; below an absent directory all is absent."""
    directories = in_workspace(root)
    try:
        for path, change in entries.items():
            if change.before is not None or path in found:
                continue
            above = entries.get(paths.parent(path))
            if above is not None and conflict.becomes_directory(above):
                continue
            if not _is_absent(directories, path):
                found[path] = conflict.conflict(path, None, entry(root, path))
    finally:
        directories.close()


def _is_absent(directories: Directories, path: str) -> bool:
    try:
        directory, name = directories.parent(path)
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # a link or a mount stands in place of a directory
    return False


def find_differences(
    root: int, at: str, top: Token | None, expected: Mapping[str, Token], original: str
) -> list[Conflict]:
    """Compare an entry, and all below it, with what it should be; files by content, whatever the times say.

    Args:
        root: an open directory that ``at`` is walked from.
        at: where the entry is now; ``top`` is its token.
        expected: by original path, all that the tree should hold.
        original: the path that ``at`` had before it was moved.
    """
    present: dict[str, Token] = {} if top is None else {at: top}
    unusable: Iterable[str] = ()
    if top is not None and top.startswith("d "):
        inside = scan(root, [at])
        present = inside.manifest
        unusable = _unusable(inside)
    moved = {original + path[len(at) :]: (path, token) for path, token in present.items()}
    found = [conflict.conflict(path, token, None) for path, token in expected.items() if path not in moved]
    for path, (place, token) in moved.items():
        difference = _difference(root, place, expected.get(path), token)
        if difference is not None:
            found.append(conflict.conflict(path, expected.get(path), difference))
    found += [
        Conflict(path=paths.to_json(path)[0], expected="as reviewed", found=UNREADABLE, reason="content_unknown")
        for path in (original + place[len(at) :] for place in unusable)
    ]
    return sorted(found, key=lambda item: item.path)


def _unusable(inside: Scan) -> list[str]:
    """Return what a tree holds that cannot be compared: mounts and what may not be read."""
    return [*inside.nested, *(path for path, _ in inside.unreadable)]


def _difference(root: int, place: str, expected: Token | None, found: Token) -> Token | None:
    """Return the token that was found if it differs, else ``None``."""
    if expected is None:
        return found
    if expected.startswith("f ") and expected.endswith(" -"):  # it could never be read
        before, after = manifest.parse(expected), manifest.parse(found)
        same = (before.inode, before.mtime_ns, before.attributes()) == (after.inode, after.mtime_ns, after.attributes())
        return None if same else found
    difference = conflict.differs(expected, found, by_content=True)
    if difference is Difference.NEEDS_CONTENT:
        found = with_content(root, place, found)
        difference = conflict.differs(expected, found, by_content=True)
    return None if difference is Difference.EQUAL else found
