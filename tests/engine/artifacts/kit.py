"""What the tests of artifacts share: nodes with a state directory, trees to capture, and a look at what came back."""

from __future__ import annotations

import itertools
import os
import random
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from flux.core.artifact import Artifact, Layer
from flux.core.node import ArtifactReference
from flux.engine.artifacts.mover import ArtifactMover
from flux.ports.artifacts import ObjectStore
from flux.ports.files import Files
from flux.trees.beneath import DIRECTORY
from flux.trees.files import SystemFiles
from flux.trees.layers.describe import describe, prefix_of
from flux.trees.layers.store import TREE, LayerStore
from flux.trees.privilege import is_privileged
from tests.trees.kit import Facts, look

OLD = 1_000_000_000_123_456_789
_copies = itertools.count()


def new_copy() -> str:
    """Return a name that no test has used."""
    return f"{next(_copies):08x}"


class Node:
    """One node's layers and artifacts.

    Args:
        place: its state directory, which is made if it is not there.
        store: the object store.
        name: its store id.
        files: the mutating file calls.
        workers: how many packs it moves at a time.
        room: how many bytes are free.
    """

    def __init__(
        self,
        place: Path,
        store: ObjectStore | None,
        name: str = "node",
        *,
        files: Files | None = None,
        workers: int = 0,
        room: Callable[[str], int] = lambda path: 1 << 40,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.files = files or SystemFiles()
        self.layers = LayerStore(str(place), self.files)
        self.layers.clear_drafts()
        self._workers, self._room = workers, room
        self.mover = self.mover_to(store, name)

    def mover_to(self, store: ObjectStore | None, name: str, new_copy: Callable[[], str] = new_copy) -> ArtifactMover:
        """Return what moves this node's artifacts to and from a store, under some name."""
        return ArtifactMover(
            self.layers,
            self.files,
            store,
            lambda: name,
            workers=self._workers,
            new_copy=new_copy,
            room=self._room,
        )

    def capture(self, make: Callable[[Path], None], below: list[str] | None = None) -> tuple[str, Layer]:
        """Publish what ``make`` writes into an empty tree as a layer."""
        draft = Path(self.layers.draft())
        (draft / TREE).mkdir()
        make(draft / TREE)
        tree = os.open(draft / TREE, DIRECTORY)
        try:
            found = describe(tree, prefix_of(privileged=is_privileged()))
        finally:
            os.close(tree)
        return self.layers.publish(str(draft), found.layer, found.seal), found.layer

    def artifact(
        self, *layers: str, generation: int = 1, parent: str | None = None, sandbox_id: str = "s", bound: bool = False
    ) -> ArtifactReference:
        """Write the manifest of an artifact over layers, nearest first."""
        size = sum(self.layers.read(layer_id).size for layer_id in layers)
        return self.layers.write_artifact(
            Artifact(
                sandbox_id=sandbox_id,
                generation=generation,
                kind="suspend",
                substrate="procbox",
                layers=list(layers),
                created_at=float(generation),
                size=size,
                parent=parent,
                bound=bound,
            )
        )

    def save(self, make: Callable[[Path], None], parent: ArtifactReference | None = None) -> ArtifactReference:
        """Capture a tree as an artifact over its parent's layers."""
        layer_id, _ = self.capture(make)
        below = [] if parent is None else self.layers.read_artifact(parent.id).layers
        generation = 1 if parent is None else self.layers.read_artifact(parent.id).generation + 1
        above = None if parent is None else parent.id
        return self.artifact(layer_id, *below, generation=generation, parent=above)

    def look(self, reference: ArtifactReference) -> list[Facts]:
        """Return every fact of each layer of an artifact, nearest first."""
        return [
            look(self.layers.tree(layer_id), directory_times=True)
            for layer_id in self.layers.read_artifact(reference.id).layers
        ]

    def visible(self) -> tuple[list[str], list[str]]:
        """Return what is there: artifacts and layers."""
        return self.layers.artifacts(), self.layers.layers()

    def drafts(self) -> list[str]:
        """Return what is not finished."""
        return [
            name
            for part in ("layers", "artifacts")
            for name in os.listdir(self.place / part)
            if name.startswith(".") or (part == "layers" and not (self.place / part / name / TREE).exists())
        ]


def write(**contents: bytes) -> Callable[[Path], None]:
    """Return what writes files with old times."""

    def make(top: Path) -> None:
        for name, data in contents.items():
            (top / name).write_bytes(data)
            os.utime(top / name, ns=(OLD, OLD))
        os.utime(top, ns=(OLD, OLD))

    return make


def noise(seed: int, size: int) -> bytes:
    """Return bytes in which no block is like another."""
    return random.Random(seed).randbytes(size)


def acl(user: int) -> bytes:
    """Return an ACL: one named user may read and write, beside owner, group and others."""
    entries = [(1, 6, -1), (2, 6, user), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def everything(top: Path) -> None:
    """Make one entry of every kind that a layer can hold; what only root can make only if that is who runs."""
    root = os.geteuid() == 0
    for name in ("plain", "opaque", "moved", "closed", "linked", "deep/er/est"):
        (top / name).mkdir(parents=True)
    (top / "plain/empty").touch()
    (top / "plain/file").write_bytes(noise(1, 200_000))
    (top / "plain/same").write_bytes(noise(1, 200_000))
    (top / os.fsdecode(b"plain/not utf-8 \xff\xfe")).write_bytes(b"bytes")
    (top / "plain/base64:trap").write_bytes(b"trap")
    (top / "plain/new\nline and space").write_bytes(b"odd")
    (top / "deep/er/est/file").write_bytes(b"deep")
    (top / "linked/one").write_bytes(b"linked" * 20_000)
    os.link(top / "linked/one", top / "linked/two")
    os.link(top / "linked/one", top / "deep/three")
    os.link(top / "plain/empty", top / "linked/empty")
    os.symlink("../nowhere/\udcff", top / "plain/link")
    os.link(top / "plain/link", top / "linked/link", follow_symlinks=False)
    os.mkfifo(top / "plain/fifo", 0o640)
    os.mknod(top / "plain/socket", stat.S_IFSOCK | 0o600)  # in place of what a lower layer may have there
    with (top / "plain/sparse").open("wb") as file:
        file.write(b"head")
        file.seek(40 * 65536 + 77)
        file.write(b"middle")
        file.truncate(90 * 65536 + 5)
    os.setxattr(top / "plain/file", "user.k", b"\0\xff v")
    os.setxattr(top / "deep", "user.d", b"")
    os.setxattr(top / "plain/same", "system.posix_acl_access", acl(5))
    os.setxattr(top / "deep", "system.posix_acl_default", acl(6))
    if root:
        _as_root(top)
    (top / "plain/file").chmod(0o4711)
    (top / "closed").chmod(0o2551)
    for path in sorted(top.rglob("*"), reverse=True):
        os.utime(path, ns=(OLD, OLD + len(path.name)), follow_symlinks=False)
    for name in ("gone", "plain/gone too") if root else ():
        os.utime(top / name, ns=(0, 0))  # of a whiteout only that it is there means something
    os.utime(top / "plain", ns=(OLD, OLD))
    os.utime(top, ns=(OLD, OLD))
    top.chmod(0o1777)


def _as_root(top: Path) -> None:
    os.mknod(top / "gone", 0o000 | 0o020000, os.makedev(0, 0))
    os.mknod(top / "plain/gone too", 0o000 | 0o020000, os.makedev(0, 0))
    os.mknod(top / "plain/null", 0o666 | 0o020000, os.makedev(1, 3))
    os.mknod(top / "plain/disk", 0o660 | 0o060000, os.makedev(7, 200))
    os.setxattr(top / "opaque", "trusted.overlay.opaque", b"y")
    os.setxattr(top / "moved", "trusted.overlay.redirect", b"/from \xff here")
    os.setxattr(top / "plain/empty", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    os.chown(top / "plain/file", 12, 34)
    os.chown(top / "plain/link", 56, 78, follow_symlinks=False)
    os.chown(top / "closed", 1000, 1000)
