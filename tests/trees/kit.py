"""What the tests of apply share: a workspace, a copy that a change is made in, and a look at every fact of a tree."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flux.core import manifest, paths
from flux.core.changeset import Change, Changes, Entry, Staged
from flux.core.conflict import merge_applied
from flux.core.manifest import EntryType, Manifest, parse
from flux.ports.files import Files
from flux.trees import apply as trees
from flux.trees.files import SystemFiles
from flux.trees.inverse import stage_inverse
from flux.trees.scan import scan

Facts = dict[str, tuple[Any, ...]]


def look(top: str | Path, *, directory_times: bool = False) -> Facts:
    """Return every fact of the tree below ``top`` but inode numbers, ctime and atime."""
    found: Facts = {}
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    pending = [(os.fsencode(top), "/")]
    while pending:
        raw, path = pending.pop()
        status = os.lstat(raw)
        kind = stat.S_IFMT(status.st_mode)
        is_directory = kind == stat.S_IFDIR
        if is_directory:
            pending += [(os.path.join(raw, name), paths.join(path, os.fsdecode(name))) for name in os.listdir(raw)]
        else:
            groups[status.st_dev, status.st_ino].append(path)
        xattrs = {key: os.getxattr(raw, key, follow_symlinks=False) for key in os.listxattr(raw, follow_symlinks=False)}
        found[path] = (
            kind,
            oct(stat.S_IMODE(status.st_mode)),
            status.st_uid,
            status.st_gid,
            0 if is_directory else status.st_nlink,
            status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0,
            status.st_mtime_ns if directory_times or not is_directory else None,
            os.readlink(raw) if kind == stat.S_IFLNK else None,
            tuple(sorted(xattrs.items())),
            _content(raw) if kind == stat.S_IFREG else None,
        )
    for names in groups.values():
        for name in names:
            found[name] = (*found[name], tuple(sorted(names)))
    return found


def _content(raw: bytes) -> tuple[int, str]:
    data = Path(os.fsdecode(raw)).read_bytes()
    return len(data), hashlib.sha256(data).hexdigest()


def differences(one: Facts, other: Facts) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two looks, by path."""
    return {
        path: (one.get(path), other.get(path)) for path in one.keys() | other.keys() if one.get(path) != other.get(path)
    }


def full_scan(root: int, at: tuple[str, ...] = ("/",)) -> Manifest:
    """Return a manifest with the digest of every regular file."""
    result = scan(root, list(at)).manifest
    for path, token in result.items():
        if token.startswith("f "):
            result[path] = manifest.with_digest(token, "sha256:" + _content_at(root, path))
    return result


def _content_at(root: int, path: str) -> str:
    with os.fdopen(os.open(paths.relative(path), os.O_RDONLY, dir_fd=root), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbers(tree: Manifest) -> dict[str, int]:
    """Return the hard-link group of each path that shares its inode."""
    names: dict[int, list[str]] = defaultdict(list)
    for path, token in tree.items():
        entry = parse(token)
        if entry.type is not EntryType.DIRECTORY:
            names[entry.inode].append(path)
    groups = sorted(sorted(group) for group in names.values() if len(group) > 1)
    return {path: number for number, group in enumerate(groups, 1) for path in group}


def _members(numbers: dict[str, int]) -> dict[str, tuple[str, ...]]:
    groups: dict[int, list[str]] = defaultdict(list)
    for path, number in numbers.items():
        groups[number].append(path)
    return {path: tuple(sorted(groups[number])) for path, number in numbers.items()}


def compare(base: Manifest, after: Manifest) -> list[Change]:
    """Return the changes between two full manifests, without staged contents."""
    before_numbers, after_numbers = _numbers(base), _numbers(after)
    before_members, after_members = _members(before_numbers), _members(after_numbers)
    changes = []
    for path in sorted(base.keys() | after.keys()):
        attributes = _attributes(base.get(path), after.get(path))
        if path in base and path in after and before_members.get(path) != after_members.get(path):
            attributes = (*attributes, "links")
        if path in base and path in after and not attributes:
            continue
        text, encoded = paths.to_json(path)
        changes.append(
            Change(
                path=text,
                path_base64=encoded,
                before=_entry(base.get(path), before_numbers.get(path)),
                after=_entry(after.get(path), after_numbers.get(path)),
                attributes=attributes,
            )
        )
    return changes


def _entry(token: str | None, group: int | None) -> Entry | None:
    return None if token is None else Entry.of(parse(token), link_group=group)


def _attributes(before: str | None, after: str | None) -> tuple[str, ...]:
    if before is None or after is None:
        return ()
    one, other = parse(before), parse(after)
    if one.type is not other.type:
        return ("type",)
    pairs = {
        "content": (one.digest, other.digest),
        "target": (one.target, other.target),
        "rdev": (one.rdev, other.rdev),
        "mode": (one.mode, other.mode),
        "owner": ((one.uid, one.gid), (other.uid, other.gid)),
        "xattrs": (one.xattrs, other.xattrs),
    }
    return tuple(name for name, (left, right) in pairs.items() if left != right)


@dataclass
class World:
    """A workspace, a state directory beside it, and the changesets in that."""

    home: Path
    files: Files = field(default_factory=SystemFiles)
    root: int = -1

    def __post_init__(self) -> None:
        self.workspace = self.home / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.root = os.open(self.workspace, os.O_RDONLY | os.O_DIRECTORY)

    def look(self, *, directory_times: bool = False) -> Facts:
        """Return every fact of the workspace."""
        return look(self.workspace, directory_times=directory_times)

    def changeset(self, name: str = "cs1", state: Path | None = None) -> Staging:
        """Return an empty changeset directory."""
        directory = (state or self.home / "changesets") / name
        (directory / "blobs").mkdir(parents=True)
        return Staging(self, name, directory)

    def speculate(self, change: Callable[[Path], None], name: str = "cs1", state: Path | None = None) -> Staging:
        """Make ``change`` in a copy of the workspace and stage what it did."""
        staging = self.changeset(name, state)
        run = self.home / f"run-{name}"
        subprocess.run(["cp", "-a", "--sparse=always", str(self.workspace), str(run)], check=True)
        change(run)
        staging.base = full_scan(self.root)
        staging.stage(run)
        staging.expected = look(run)
        return staging


@dataclass
class Staging:
    """One changeset on disk."""

    world: World
    name: str
    path: Path
    base: Manifest = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    expected: Facts = field(default_factory=dict)
    scope: Any = "all"
    paths: tuple[str, ...] = ("/",)

    def moved(self, state: Path) -> Staging:
        """Return this changeset with its directory elsewhere, such as on another mount."""
        state.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(self.path), str(state / self.name)], check=True)
        return replace(self, path=state / self.name)

    def stage(self, run: Path) -> None:
        """Stage what ``run`` has and the base does not: contents that the base holds by reference, others as blobs."""
        root = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            after = full_scan(root)
        finally:
            os.close(root)
        known = {
            token.rpartition(" ")[2]: path for path, token in sorted(self.base.items(), reverse=True) if token[0] == "f"
        }
        self.changes = [self._staged(change, run, known) for change in compare(self.base, after)]

    def _staged(self, change: Change, run: Path, known: dict[str, str]) -> Change:
        after = change.after
        new = change.before is None or "content" in change.attributes or "type" in change.attributes
        if after is None or after.type is not EntryType.FILE or not new:
            return change
        if after.digest in known and after.size:
            text, encoded = paths.to_json(known[after.digest])
            staged = Staged(reference=text, reference_base64=encoded)
        else:
            staged = Staged(blob=self._blob(run, change.location))
        return Change(
            path=change.path,
            path_base64=change.path_base64,
            before=change.before,
            after=after,
            attributes=change.attributes,
            staged=staged,
        )

    def _blob(self, run: Path, path: str) -> str:
        name = f"{len(list((self.path / 'blobs').iterdir())):06d}"
        source = os.path.join(os.fsencode(run), paths.to_bytes(paths.relative(path)))
        subprocess.run(["cp", "--sparse=always", "--", source, self.path / "blobs" / name], check=True)
        (self.path / "blobs" / name).chmod(0o600)
        return name

    def job(self, **changed: Any) -> trees.ApplyJob:
        """Return the apply of this changeset; the descriptors are the caller's to close."""
        values: dict[str, Any] = {
            "changeset_id": self.name,
            "root": self.world.root,
            "directory": os.open(self.path, os.O_RDONLY | os.O_DIRECTORY),
            "changes": self.changes,
            "base": self.base,
            "paths": self.paths,
            "scope": self.scope,
            "files": self.world.files,
        }
        return trees.ApplyJob(**values | changed)

    def apply(self, commit: Callable[[], None] | None = None, **changed: Any) -> trees.Applied:
        """Apply it, and drop the blobs as the engine does after the commit."""
        job = self.job(**changed)
        try:
            result = trees.apply(job, commit or (lambda: None))
        finally:
            os.close(job.directory)
        for blob in (self.path / "blobs").iterdir():
            blob.unlink()
        return result

    def recover(self, *, committed: bool = False, files: Files | None = None) -> trees.Recovery:
        """Recover from a crash."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return trees.recover(
                directory, str(self.world.workspace), committed=committed, files=files or self.world.files
            )
        finally:
            os.close(directory)

    def inverse(self, name: str = "cs2") -> Staging:
        """Stage the inverse of this applied changeset."""
        result = self.world.changeset(name, self.path.parent)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        blobs = os.open(result.path / "blobs", os.O_RDONLY | os.O_DIRECTORY)
        try:
            changes, unstaged, applied = stage_inverse(
                directory, Changes.of(self.changes, unchanged=0), blobs, self.world.files
            )
        finally:
            os.close(directory)
            os.close(blobs)
        assert not unstaged
        result.changes = changes.every()
        result.base = merge_applied(full_scan(self.world.root), applied, result.changes)
        return result
