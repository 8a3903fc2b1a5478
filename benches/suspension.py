"""What a pause and a connect cost: a managed procbox of many files, of which ten changed since the last pause."""

from __future__ import annotations

import hashlib
import os
import statistics
from pathlib import Path

from benches import measure
from flux.core.artifact import Artifact
from flux.core.lifecycle import NodeState
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.engine.artifacts.mover import ArtifactMover
from flux.engine.context import Context
from flux.engine.lifecycle.executions import Executions
from flux.engine.settings import Settings
from flux.network.sink import TunSink
from flux.ports.observer import Unobserved
from flux.store.stores import Stores
from flux.substrates.procbox.substrate import Procbox
from flux.testing.clock import FakeClock
from flux.trees.files import SystemFiles

ROUNDS = 11
CHANGED = 10
SMALL, LARGE = 10_000, 100_000


class _Box:
    """A sandbox whose own layer holds all files at its first pause."""

    def __init__(self, place: Path, files: int) -> None:
        state = place / "state"
        state.mkdir(parents=True)
        (place / "template").mkdir()
        system = SystemFiles()
        clock = FakeClock()
        self._context = Context(
            Stores(str(state), clock, system),
            {"procbox": Procbox(str(state), sink=TunSink())},
            clock,
            system,
            Settings(persistent=True),
            Unobserved(),
        )
        self._executions = Executions(self._context, ArtifactMover(self._context.layers, system, None, lambda: "bench"))
        self._sandbox = Sandbox(
            id="sbbench", kind="procbox", layout="managed", state=NodeState.RUNNING, created_at=0.0, root_device=0,
            root_inode=0, template=str(place / "template"),
        )  # fmt: skip
        self._generation = 1
        self._files = files
        self._executions.prepare(self._sandbox, 1, None)
        measure.make_tree(state / "sandboxes/sbbench/g1/upper/data", files)
        self._executions.start(self._sandbox, 1)
        self.saved = self.pause()

    def change(self, round_number: int) -> None:
        """Write ten files through the sandbox's own tree."""
        instance = self._context.instances.running("sbbench")
        assert instance is not None
        for number in range(CHANGED):
            at = (round_number * CHANGED + number) * 97 % self._files
            name = f"data/d{at // measure.FILES_IN_DIRECTORY:04d}/f{at:06d}"
            descriptor = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=instance.tree_descriptor)
            os.write(descriptor, os.urandom(4096))
            os.close(descriptor)

    def pause(self) -> ArtifactReference:
        """Save it and end it."""
        self._executions.quiesce(self._sandbox, self._generation)
        made = self._executions.capture(self._sandbox, self._generation, None, created_at=0.0, snapshot=False)
        self._executions.end(self._sandbox, self._generation)
        return made.reference

    def connect(self) -> None:
        """Restore it as its next generation."""
        self._generation += 1
        self._executions.prepare(self._sandbox, self._generation, self.saved)
        self._executions.start(self._sandbox, self._generation)

    def artifact(self) -> Artifact:
        """Return what was saved last."""
        return self._context.layers.read_artifact(self.saved.id)

    def close(self) -> None:
        """End it."""
        self._context.close()


def _medians(place: Path, files: int) -> tuple[float, float, float]:
    """Return the medians of a pause, a connect, and reading and hashing ten files, in milliseconds."""
    box = _Box(place, files)
    pauses, connects, bare = [], [], []
    reference = measure.make_tree(place / "reference", CHANGED, os.urandom(4096))
    try:
        for number in range(ROUNDS):
            connects.append(measure.timed(box.connect))
            box.change(number)
            pauses.append(measure.timed(lambda: setattr(box, "saved", box.pause())))
            bare.append(measure.timed(lambda: _hash(reference)))
    finally:
        box.close()
    return statistics.median(pauses), statistics.median(connects), statistics.median(bare)


def _hash(tree: Path) -> None:
    for path in sorted(tree.rglob("f*")):
        hashlib.sha256(path.read_bytes()).hexdigest()


def run() -> list[measure.Row]:
    """Return pause and connect at two sizes, against reading and hashing the changed files, and against each other."""
    with measure.folder() as place:
        pause, connect, bare = _medians(place / "small", SMALL)
        large_pause, large_connect, _ = _medians(place / "large", LARGE)
    return [
        measure.Row("pause, 10 of 10 000 files changed; against hashing the 10", pause, bare, "ms", "absolute", 80),
        measure.Row("connect, 10 000 files; against hashing 10", connect, bare, "ms", "absolute", 60),
        measure.Row("pause at 100 000 files; against 10 000", large_pause, pause, "ms", "ratio", 1.3),
        measure.Row("connect at 100 000 files; against 10 000", large_connect, connect, "ms", "ratio", 1.3),
    ]
