"""The drift check: is the sandbox still what the changeset was reviewed against (30-speculation §5.2)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from flux.core import conflict, manifest, paths
from flux.core.changeset import Change, ConflictScope
from flux.core.conflict import Conflict, Difference
from flux.core.manifest import EntryType, Manifest, Token
from flux.trees.area import in_workspace
from flux.trees.beneath import open_regular
from flux.trees.scan import Scan, entry, hash_file, rescan, scan

UNREADABLE = "unreadable"


def find_conflicts(
    root: int,
    base: Manifest,
    changes: Sequence[Change],
    *,
    paths: Sequence[str],
    scope: ConflictScope,
    skip: Collection[str] = (),
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
    """
    touched = conflict.touched(changes)
    found: dict[str, Conflict] = {}
    areas = list(paths) if scope == "all" else list(touched.trees)
    if areas:
        for path in rescan(root, areas, base, skip=skip):
            _judge(root, base, path, found)
    for path, change in touched.entries.items():
        if path not in found and (scope == "touched" or change.before is not None):
            _judge_touched(root, base, path, change, found)
    if scope == "touched":
        _judge_absent(root, touched.entries, found)
        for path in touched.ancestors:
            if path in base:
                _judge(root, base, path, found)
    return [found[path] for path in sorted(found)]


def _judge(root: int, base: Manifest, path: str, found: dict[str, Conflict]) -> None:
    """Compare one path by identity, then by content where the base knows it."""
    expected, now = base.get(path), entry(root, path)
    if expected is None and now is None:
        return
    if expected is None or now is None:
        found[path] = conflict.conflict(path, expected, now)
        return
    difference = conflict.differs(expected, now)
    if difference is Difference.NEEDS_CONTENT:
        now = with_content(root, path, now) if manifest.parse(expected).digest is not None else now
        difference = conflict.differs(expected, now)
    if difference is not Difference.EQUAL:
        found[path] = conflict.conflict(path, expected, now)


def _judge_touched(root: int, base: Manifest, path: str, change: Change, found: dict[str, Conflict]) -> None:
    """Compare one touched path that is expected to be there, a regular file always by digest."""
    expected = base.get(path)
    if expected is None:
        return
    if expected.startswith("f ") and not expected.endswith(" -"):
        now = entry(root, path)
        now = None if now is None else with_content(root, path, now)
        if now is None or conflict.differs(expected, now, by_content=True) is not Difference.EQUAL:
            found[path] = conflict.conflict(path, expected, now)
        return
    _judge(root, base, path, found)


def _judge_absent(root: int, entries: Mapping[str, Change], found: dict[str, Conflict]) -> None:
    """A path that is expected to be absent must be absent by ``lstat``; below an absent directory all is absent."""
    directories = in_workspace(root)
    try:
        for path, change in entries.items():
            if change.before is not None or path in found:
                continue
            above = entries.get(paths.parent(path))
            if above is not None and (above.before is None or conflict.becomes_directory(above)):
                continue
            try:
                directory, name = directories.parent(path)
                os.stat(name, dir_fd=directory, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                pass  # a link in place of a directory, or a mount: ``entry`` says what is there
            found[path] = conflict.conflict(path, None, entry(root, path))
    finally:
        directories.close()


def with_content(root: int, path: str, token: Token) -> Token:
    """Return ``token`` with the digest of the file that is there now, unchanged if it cannot be read."""
    if not token.startswith("f "):
        return token
    try:
        descriptor = open_regular(root, path)
    except OSError:
        return token
    try:
        return manifest.with_digest(token, hash_file(descriptor))
    finally:
        os.close(descriptor)


def find_differences(root: int, at: str, expected: Mapping[str, Token], original: str) -> list[Conflict]:
    """Compare an entry, and all below it, with what it should be; files by content, whatever the times say.

    Args:
        root: an open directory that ``at`` is walked from.
        at: where the entry is now.
        expected: by original path, all that the tree should hold.
        original: the path that ``at`` had before it was moved.
    """
    top = entry(root, at)
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
    before = manifest.parse(expected)
    if before.type is not EntryType.FILE or not found.startswith("f "):
        return None if conflict.differs(expected, found) is Difference.EQUAL else found
    now = with_content(root, place, found)
    if before.digest is not None:
        return None if conflict.differs(expected, now, by_content=True) is Difference.EQUAL else now
    after = manifest.parse(found)
    same = (before.inode, before.mtime_ns, before.attributes()) == (after.inode, after.mtime_ns, after.attributes())
    return None if same else now
