"""How many bytes an upload sends when little has changed: of many files, and of one large file copied up whole."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from benches import measure
from flux.core.artifact import BLOCK, Artifact
from flux.core.node import ArtifactReference
from flux.engine.artifacts.mover import ArtifactMover
from flux.objects.directory import DirectoryStore
from flux.trees.beneath import DIRECTORY
from flux.trees.files import SystemFiles
from flux.trees.layers.describe import describe, prefix_of
from flux.trees.layers.store import TREE, LayerStore
from flux.trees.privilege import is_privileged

FILES = 10_000
FILE_BYTES = 4096
LARGE_BYTES = int(os.environ.get("BENCH_UPLOAD_MIB", "1024")) * measure.MIB
HUNDREDTH = 100
_LIMIT = 0.03


class Node:
    """A node's artifacts in a directory, and an object store beside them."""

    def __init__(self, place: Path) -> None:
        (place / "state").mkdir()
        files = SystemFiles()
        self.layers = LayerStore(str(place / "state"), files)
        self.mover = ArtifactMover(self.layers, files, DirectoryStore(str(place / "objects"), files), lambda: "bench")

    def upload(self, make: Callable[[Path], None], parent: ArtifactReference | None) -> tuple[ArtifactReference, int]:
        """Save a tree as a layer over its parent's and upload it; return the artifact and the bytes sent."""
        draft = Path(self.layers.draft())
        (draft / TREE).mkdir()
        make(draft / TREE)
        tree = os.open(draft / TREE, DIRECTORY)
        try:
            found = describe(tree, prefix_of(privileged=is_privileged()))
        finally:
            os.close(tree)
        below = [] if parent is None else self.layers.read_artifact(parent.id).layers
        artifact = Artifact(
            sandbox_id="bench",
            generation=len(below) + 1,
            kind="suspend",
            substrate="procbox",
            layers=[self.layers.publish(str(draft), found.layer, found.seal), *below],
            created_at=float(len(below)),
            parent=None if parent is None else parent.id,
        )
        reference = self.layers.write_artifact(artifact)
        return reference, self.mover.upload(reference)


def many_files() -> measure.Row:
    """Change one file in a hundred."""
    chance = random.Random(1)

    def write(top: Path, numbers: range) -> None:
        for number in numbers:
            directory = top / f"d{number // measure.FILES_IN_DIRECTORY:04d}"
            directory.mkdir(exist_ok=True)
            (directory / f"f{number:06d}").write_bytes(chance.randbytes(FILE_BYTES))

    with measure.folder() as place:
        node = Node(place)
        full, all_bytes = node.upload(lambda top: write(top, range(FILES)), None)
        _, changed_bytes = node.upload(lambda top: write(top, range(0, FILES, HUNDREDTH)), full)
    name = f"upload with 1 % of {FILES} files changed; against all of it"
    return measure.Row(name, changed_bytes / measure.MIB, all_bytes / measure.MIB, "MiB", "ratio", _LIMIT)


def large_file() -> measure.Row:
    """Change one block in a hundred of a file; the overlay has copied all of it up."""
    chance = random.Random(2)
    blocks = LARGE_BYTES // BLOCK

    def write(top: Path, seed: int, changed: frozenset[int]) -> None:
        same, other = random.Random(seed), random.Random(seed + 1)
        with (top / "large").open("wb") as file:
            for number in range(blocks):
                data = same.randbytes(BLOCK)
                file.write(other.randbytes(BLOCK) if number in changed else data)

    with measure.folder() as place:
        node = Node(place)
        full, all_bytes = node.upload(lambda top: write(top, 7, frozenset()), None)
        changed = frozenset(chance.sample(range(blocks), blocks // HUNDREDTH))
        _, changed_bytes = node.upload(lambda top: write(top, 7, changed), full)
    name = f"upload with 1 % of the blocks of a {LARGE_BYTES // measure.MIB} MiB file changed; against all"
    return measure.Row(name, changed_bytes / measure.MIB, all_bytes / measure.MIB, "MiB", "ratio", _LIMIT)


def run() -> list[measure.Row]:
    """Return both rows."""
    return [many_files(), large_file()]
