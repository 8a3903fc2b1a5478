"""A node's machine as the explorer sees it: trees with lines in them, processes, artifacts. It outlives the manager.

Whoever runs writes at the worst moments, and each line counts as acknowledged: when it starts; right before it is
frozen; after its tree was copied and before it is ended, if nobody froze it. A machine's state is one value that is
replaced, so that going back is putting the old one back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from flux.core.artifact import damaged, missing
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.ports.artifacts import Progress
from flux.ports.executions import Made, OwnExecution

#: Every resource is as old as that: only a fresh look at the rows keeps the reconciler from what is in use.
AGE_SECONDS = 1e9
#: The kind of which an execution cannot be started again in place.
FRAGILE = "fragile"


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """One generation's writable tree, with its processes. ``base``: the artifact that it was laid over."""

    sandbox_id: str
    generation: int
    kind: str
    lines: tuple[str, ...] = ()
    base: str | None = None
    running: bool = False
    frozen: bool = False

    @property
    def is_live(self) -> bool:
        """Tell whether its processes can write to it."""
        return self.running and not self.frozen


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact's content."""

    id: str
    digest: str
    sandbox_id: str
    generation: int
    lines: tuple[str, ...]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on a machine, for the invariants."""

    what: str
    node: str
    sandbox_id: str
    generation: int
    artifact_id: str | None = None
    digest: str | None = None
    lines: tuple[str, ...] = ()


class MachineState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on one machine's disk, and what runs."""

    trees: tuple[Tree, ...] = ()
    saved: tuple[Saved, ...] = ()


class Store:
    """The object store of all nodes."""

    def __init__(self) -> None:
        self.saved: tuple[Saved, ...] = ()


class Machine:
    """One machine. ``events`` is emptied by who looks on."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store
        self.state = MachineState()
        self.changing = 0
        self.events: list[Event] = []

    def tree(self, sandbox_id: str, generation: int) -> Tree | None:
        """Return a generation's tree."""
        return next((tree for tree in self.state.trees if _names(tree, sandbox_id, generation)), None)

    def put(self, tree: Tree) -> None:
        """Add a tree, or replace the one of its generation."""
        others = [each for each in self.state.trees if not _names(each, tree.sandbox_id, tree.generation)]
        trees = sorted([*others, tree], key=lambda each: (each.sandbox_id, each.generation))
        self.become(trees=tuple(trees))

    def become(self, **changes: Any) -> None:
        """Replace a part of the state."""
        self.changing += 1
        self.state = msgspec.structs.replace(self.state, **changes)

    def drop(self, dropped: Callable[[Tree], bool]) -> None:
        """Remove trees with all that runs in them."""
        for tree in self.state.trees:
            if dropped(tree):
                self.tell("ended", self._last_words(tree))
        self.become(trees=tuple(tree for tree in self.state.trees if not dropped(tree)))

    def _last_words(self, tree: Tree) -> Tree:
        return self.written(tree) if tree.is_live else tree

    def written(self, tree: Tree) -> Tree:
        """Let a live execution append a line, which is acknowledged."""
        line = f"{tree.generation}.{len(tree.lines)}"
        wrote = msgspec.structs.replace(tree, lines=(*tree.lines, line))
        self.tell("wrote", wrote)
        return wrote

    def keep(self, saved: Saved) -> None:
        """Have an artifact on this disk."""
        if all(each.id != saved.id for each in self.state.saved):
            kept = tuple(sorted((*self.state.saved, saved), key=lambda each: each.id))
            self.become(saved=kept)

    def find(self, artifact_id: str) -> Saved | None:
        """Return an artifact that this disk has."""
        return next((each for each in self.state.saved if each.id == artifact_id), None)

    def tell(self, what: str, tree: Tree, artifact_id: str | None = None, digest: str | None = None) -> None:
        """Note an event."""
        self.events.append(
            Event(
                what=what,
                node=self.name,
                sandbox_id=tree.sandbox_id,
                generation=tree.generation,
                artifact_id=artifact_id,
                digest=digest,
                lines=tree.lines,
            )
        )

    def reboot(self) -> None:
        """End every process; trees and artifacts stay."""
        trees = tuple(
            msgspec.structs.replace(self._last_words(tree), running=False, frozen=False) for tree in self.state.trees
        )
        self.become(trees=trees)


class ModelExecutions:
    """Implements ``ports.executions.Executions`` on a ``Machine``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def admit(self, sandbox: Sandbox, artifact: ArtifactReference | None) -> None:
        pass

    def prepare(self, sandbox: Sandbox, generation: int, artifact: ArtifactReference | None) -> None:
        lines: tuple[str, ...] = ()
        if artifact is not None:
            lines = _fetched(self._machine, artifact).lines
        base = None if artifact is None else artifact.id
        tree = Tree(sandbox_id=sandbox.id, generation=generation, kind=sandbox.kind, lines=lines, base=base)
        self._machine.put(tree)
        self._machine.tell("prepared", tree, base, None if artifact is None else artifact.digest)

    def start(self, sandbox: Sandbox, generation: int) -> None:
        tree = self._tree(sandbox.id, generation)
        self._machine.tell("started", tree, tree.base)
        self._machine.put(self._machine.written(msgspec.structs.replace(tree, running=True, frozen=False)))

    def discard(self, sandbox_id: str, generation: int) -> None:
        self._machine.drop(lambda tree: _names(tree, sandbox_id, generation))

    def alive(self, sandbox: Sandbox, generation: int) -> bool:
        tree = self._machine.tree(sandbox.id, generation)
        return tree is not None and (tree.running or tree.kind != FRAGILE)

    def quiesce(self, sandbox: Sandbox, generation: int) -> None:
        tree = self._tree(sandbox.id, generation)
        if tree.is_live:
            tree = self._machine.written(tree)
        self._machine.put(msgspec.structs.replace(tree, frozen=True))

    def resume(self, sandbox: Sandbox, generation: int) -> None:
        tree = self._machine.tree(sandbox.id, generation)
        if tree is not None:
            self._machine.put(msgspec.structs.replace(tree, frozen=False))

    def capture(
        self, sandbox: Sandbox, generation: int, parent: ArtifactReference | None, *, created_at: float, snapshot: bool
    ) -> Made:
        tree = self._tree(sandbox.id, generation)
        text = repr((sandbox.id, generation, snapshot, created_at, tree.lines))
        digest = hashlib.sha256(text.encode()).hexdigest()
        saved = Saved(id=digest[:32], digest=digest, sandbox_id=sandbox.id, generation=generation, lines=tree.lines)
        self._machine.keep(saved)
        self._machine.tell("captured", tree, saved.id, digest)
        if tree.is_live:
            self._machine.put(self._machine.written(tree))
        reference = ArtifactReference(id=saved.id, digest=digest)
        return Made(reference=reference, size=len(text), stored=len(text), layers=(digest,))

    def end(self, sandbox: Sandbox, generation: int) -> None:
        self.discard(sandbox.id, generation)

    def kill(self, sandbox: Sandbox, generation: int) -> None:
        self.discard(sandbox.id, generation)

    def remove(self, sandbox_id: str) -> None:
        self._machine.drop(lambda tree: tree.sandbox_id == sandbox_id)

    def own(self) -> list[OwnExecution]:
        return [
            OwnExecution(sandbox_id=tree.sandbox_id, generation=tree.generation, age_seconds=AGE_SECONDS)
            for tree in self._machine.state.trees
        ]

    def _tree(self, sandbox_id: str, generation: int) -> Tree:
        tree = self._machine.tree(sandbox_id, generation)
        if tree is None:
            raise FluxError(Code.INTERNAL, f"cannot find generation {generation} of {sandbox_id} on this machine")
        return tree


class ModelArtifacts:
    """Implements ``ports.artifacts.Artifacts`` on a ``Machine`` and the ``Store`` of all of them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def upload(self, reference: ArtifactReference, tell: Callable[[Progress], None] = lambda _: None) -> int:
        saved = self._machine.find(reference.id)
        if saved is None:
            raise missing("artifact", reference.id)
        store = self._machine.store
        if all(each.id != saved.id for each in store.saved):
            store.saved = tuple(sorted((*store.saved, saved), key=lambda each: each.id))
            self._machine.changing += 1
        return len(saved.lines)

    def fetch(self, reference: ArtifactReference) -> None:
        _fetched(self._machine, reference)

    def has(self, artifact_id: str) -> bool:
        return self._machine.find(artifact_id) is not None

    def verify(self, reference: ArtifactReference) -> None:
        saved = self._machine.find(reference.id)
        if saved is None:
            raise missing("artifact", reference.id)
        if saved.digest != reference.digest:
            raise damaged("artifact", reference.id, "its digest is another one")

    def keep_only(self, artifact_ids: Iterable[str]) -> int:
        kept = set(artifact_ids)
        state = self._machine.state
        saved = tuple(each for each in state.saved if each.id in kept)
        self._machine.become(saved=saved)
        return len(state.saved) - len(saved)


def _names(tree: Tree, sandbox_id: str, generation: int) -> bool:
    return (tree.sandbox_id, tree.generation) == (sandbox_id, generation)


def _fetched(machine: Machine, reference: ArtifactReference) -> Saved:
    saved = machine.find(reference.id)
    if saved is None:
        saved = next((each for each in machine.store.saved if each.id == reference.id), None)
    if saved is None:
        raise missing("artifact", reference.id)
    if saved.digest != reference.digest:
        raise damaged("artifact", reference.id, "its digest is another one")
    machine.keep(saved)
    return saved
