"""One compact changeset that holds every kind of step, and the set-up to apply it any number of times."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from flux.core.changeset import Change
from tests.trees.kit import Facts, Staging, World, differences, full_scan

OLD = 1_000_000_000_123_456_789


def _acl(user: int) -> bytes:
    """Return an ACL: one named user may read and write, beside owner, group and others."""
    entries = [(1, 6, -1), (2, 6, user), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def _capability(number: int) -> bytes:
    return struct.pack("<5I", 0x02000001, 1 << number, 0, 0, 0)


def build(top: Path) -> None:
    """Make the tree that is there before."""
    for name in ("gone", "gone/deep", "typed", "kept", "closed", "dir", "moved"):
        (top / name).mkdir()
    names = "file gone/a gone/deep/b typed/x old kept/c linked odd moved/m swap mode acl capable"
    for name in names.split():
        (top / name).write_text(f"before {name}\n")
    os.link(top / "linked", top / "linked2")
    os.link(top / "old", top / "old2")
    os.symlink("nowhere", top / "link")
    os.setxattr(top / "mode", "user.k", b"1")
    os.setxattr(top / "acl", "system.posix_acl_access", _acl(5))
    if os.geteuid() == 0:
        os.setxattr(top / "capable", "security.capability", _capability(13))
    (top / "closed").chmod(0o555)
    for path in sorted(top.rglob("*"), reverse=True):
        os.utime(path, ns=(OLD, OLD), follow_symlinks=False)
    os.utime(top, ns=(OLD, OLD))


def change(top: Path) -> None:
    """Make the changes."""
    shutil.rmtree(top / "gone")
    shutil.rmtree(top / "typed")
    (top / "typed").write_text("a file now\n")
    (top / "odd").unlink()
    (top / "odd").mkdir()
    (top / "odd/inside").write_text("new\n")
    (top / "file").write_text("after\n")
    (top / "closed").chmod(0o755)
    (top / "closed/new").write_text("x")
    (top / "closed").chmod(0o555)
    (top / "linked").write_text("both names\n")
    (top / "old2").unlink()
    os.link(top / "old", top / "kept/old3")
    (top / "moved/m").rename(top / "dir/m")
    (top / "fresh/sub").mkdir(parents=True)
    (top / "fresh/sub/file").write_text("fresh\n")
    os.link(top / "fresh/sub/file", top / "fresh/twin")
    os.mkfifo(top / "fresh/fifo")
    (top / "fresh").chmod(0o700)
    (top / "link").unlink()
    os.symlink("somewhere", top / "link")
    (top / "mode").chmod(0o600)
    os.setxattr(top / "mode", "user.k", b"2")
    os.setxattr(top / "mode", "user.l", b"3")
    os.setxattr(top / "acl", "system.posix_acl_access", _acl(6))
    (top / "acl").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(top / "capable", 1, 1)
        os.setxattr(top / "capable", "security.capability", _capability(10))
    (top / "kept").chmod(0o711)
    (top / "copy").write_text("before swap\n")


class Scenario:
    """The changeset is captured once; every run of it has a fresh workspace and state directory.

    Args:
        home: where the workspaces are made.
        state: where the state directories are made; on another mount, the area lies in the workspace.
    """

    def __init__(self, home: Path, state: Path) -> None:
        self._home = home
        self._state = state
        self._number = 0
        world = self._world()
        build(world.workspace)
        self.before: Facts = world.look(directory_times=True)
        staging = world.speculate(change, state=state / "template")
        self.after: Facts = staging.expected
        self._changes: list[Change] = staging.changes
        self._blobs = {blob.name: blob.read_bytes() for blob in (staging.path / "blobs").iterdir()}

    def _world(self) -> World:
        self._number += 1
        home = self._home / str(self._number)
        home.mkdir()
        return World(home)

    def fresh(self) -> Staging:
        """Return the changeset staged over a new workspace."""
        world = self._world()
        build(world.workspace)
        staging = world.changeset(state=self._state / str(self._number))
        for name, data in self._blobs.items():
            (staging.path / "blobs" / name).write_bytes(data)
            (staging.path / "blobs" / name).chmod(0o600)
        staging.base = full_scan(world.root)
        staging.changes = self._changes
        return staging

    def discard(self, staging: Staging) -> None:
        """Remove what a run used."""
        os.close(staging.world.root)
        shutil.rmtree(staging.world.home)
        shutil.rmtree(staging.path.parent)


def apply_with_marker(staging: Staging) -> None:
    """Apply; the commit is a file beside the journal, as the engine's is a renamed ``meta.json``."""
    staging.apply(commit=lambda: (staging.path / "committed").write_text(""))


def is_committed(staging: Staging) -> bool:
    """Tell whether the commit happened."""
    return (staging.path / "committed").exists()


def check(scenario: Scenario, staging: Staging) -> None:
    """The tree is exactly as before, or exactly as after where the commit happened; nothing else is left."""
    for blob in (staging.path / "blobs").iterdir():
        blob.unlink()  # as the engine does when a changeset is final
    if is_committed(staging):
        found = differences(staging.world.look(), scenario.after)
    else:
        found = differences(staging.world.look(directory_times=True), scenario.before)
    assert not found, found
    left = set(os.listdir(staging.path)) - {"blobs", "journal", "committed", "committed.new"}
    assert left <= ({"trash"} if is_committed(staging) else {"journal.new"}), left
