"""What has really happened, kept beside the world: what an omniscient reader of all databases and disks would know.

Nothing here is read back from what the guards themselves record: a rollback is a row that leaves ``activating`` for
rest, not a receipt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from flux.core.lifecycle import AT_REST, DORMANT, NodeState
from flux.testing.explorer.machine import Event, Saved

#: The node and the sandbox; with a generation, or an attempt, as the third.
Here: TypeAlias = tuple[str, str]
At: TypeAlias = tuple[str, str, int]


class Row(msgspec.Struct, frozen=True):
    """A node's row, as an invariant looks at it."""

    sandbox_id: str
    state: str
    generation: int | None
    attempt_id: str | None
    pod_uid: str | None
    artifact_id: str | None
    restoring: str | None
    named: str | None

    @property
    def is_at_rest(self) -> bool:
        """Tell whether nobody works on it."""
        return NodeState(self.state) in AT_REST


class FenceRow(msgspec.Struct, frozen=True):
    """A node's fence of one sandbox. ``receipt``: whether a deletion is recorded."""

    sandbox_id: str
    claimed: int
    claimed_attempt: str | None
    retired: int
    receipt: bool


class NodeView(msgspec.Struct, frozen=True):
    """One node's store. ``artifacts`` and ``jobs``: how many."""

    rows: tuple[Row, ...] = ()
    fences: tuple[FenceRow, ...] = ()
    artifacts: int = 0
    jobs: int = 0

    def row(self, sandbox_id: str) -> Row | None:
        """Return a sandbox's row."""
        return next((row for row in self.rows if row.sandbox_id == sandbox_id), None)

    def fence(self, sandbox_id: str) -> FenceRow:
        """Return a sandbox's fence."""
        found = (fence for fence in self.fences if fence.sandbox_id == sandbox_id)
        return next(found, FenceRow(sandbox_id, 0, None, 0, False))


class Known(msgspec.Struct, frozen=True):
    """One row of the registry."""

    sandbox_id: str
    state: str
    generation: int
    attempt_id: str | None
    pod_uid: str | None
    node: str | None
    artifact_id: str | None
    artifact_digest: str | None


class Kept(msgspec.Struct, frozen=True):
    """What a sandbox was last saved to, by which generation, and every line that must be in it."""

    generation: int
    artifact_id: str
    digest: str
    lines: frozenset[str]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was ever seen.

    ``nodes``, ``registry``: as they were after the last step. ``rolled_back``: generations that a node claimed and
    undid. ``committed``: generations that a node made running. ``started``: the highest generation of a sandbox that
    was ever started. ``written``: the lines that a generation acknowledged. ``kept``: what is current.
    ``destroyed``: the node said so. ``killed``: the registry says so. ``classes``: how a node last answered an attempt
    for good. ``writers``: the tasks that changed something; ``admitted``: those that moved a row.
    """

    nodes: Mapping[str, NodeView] = {}
    registry: Mapping[str, Known] = {}
    rolled_back: frozenset[At] = frozenset()
    committed: frozenset[At] = frozenset()
    started: Mapping[str, int] = {}
    written: Mapping[tuple[str, int], frozenset[str]] = {}
    kept: Mapping[str, Kept] = {}
    destroyed: frozenset[Here] = frozenset()
    killed: frozenset[str] = frozenset()
    classes: Mapping[tuple[str, str], str] = {}
    writers: frozenset[int] = frozenset()
    admitted: frozenset[int] = frozenset()

    def node(self, name: str) -> NodeView:
        """Return what a node's store holds."""
        return self.nodes.get(name, NodeView())

    def with_node(self, name: str, view: NodeView, saved: tuple[Saved, ...]) -> Facts:
        """Return the facts after a step of a node: what its rows went through is added. ``saved``: its disk's."""
        before = self.node(name)
        rolled_back, committed = set[At](), set[At]()
        for row in before.rows:
            after = view.row(row.sandbox_id)
            if row.state != NodeState.ACTIVATING or row.generation is None:
                continue
            if after is None or NodeState(after.state) in DORMANT:
                rolled_back.add((name, row.sandbox_id, row.generation))
        for row in view.rows:
            if row.state == NodeState.RUNNING and row.generation is not None:
                committed.add((name, row.sandbox_id, row.generation))
        return msgspec.structs.replace(
            self,
            nodes={**self.nodes, name: view},
            kept={**self.kept, **self._newly_kept(before, view, saved)},
            rolled_back=self.rolled_back | rolled_back,
            committed=self.committed | committed,
        )

    def _newly_kept(self, before: NodeView, view: NodeView, saved: tuple[Saved, ...]) -> dict[str, Kept]:
        found: dict[str, Kept] = {}
        for row in view.rows:
            earlier = before.row(row.sandbox_id)
            if row.state != NodeState.SUSPENDED or earlier is None or earlier.state != NodeState.SUSPENDING:
                continue
            held = self.kept.get(row.sandbox_id)
            lines = (held.lines if held else frozenset()) | self.written.get(
                (row.sandbox_id, row.generation or 0), frozenset()
            )
            digest = next((each.digest for each in saved if each.id == row.artifact_id), "")
            found[row.sandbox_id] = Kept(row.generation or 0, str(row.artifact_id), digest, lines)
        return found

    def with_event(self, event: Event) -> Facts:
        """Return the facts after something happened on a machine."""
        if event.what == "started":
            highest = max(event.generation, self.started.get(event.sandbox_id, 0))
            return msgspec.structs.replace(self, started={**self.started, event.sandbox_id: highest})
        if event.what == "wrote":
            key = (event.sandbox_id, event.generation)
            lines = self.written.get(key, frozenset()) | {event.lines[-1]}
            return msgspec.structs.replace(self, written={**self.written, key: lines})
        return self

    def with_registry(self, registry: Mapping[str, Known]) -> Facts:
        """Return the facts after a step of the control plane."""
        killed = {known.sandbox_id for known in registry.values() if known.state == "killed"}
        gone = {sandbox_id for sandbox_id in self.registry if sandbox_id not in registry}
        return msgspec.structs.replace(self, registry=registry, killed=self.killed | killed | gone)

    def state(self) -> str:
        """Return what can make a difference to an invariant later, and is not in a database."""
        parts: list[Any] = [
            sorted(self.rolled_back),
            sorted(self.committed),
            sorted(self.started.items()),
            sorted((key, sorted(lines)) for key, lines in self.written.items()),
            sorted((key, kept.generation, kept.artifact_id) for key, kept in self.kept.items()),
            sorted(self.destroyed),
            sorted(self.classes.items()),
        ]
        return repr(parts)


def moved(before: NodeView, after: NodeView) -> bool:
    """Tell whether a step moved a row to another state: it put one in flight, or one that was abandoned to rest."""
    states = [{row.sandbox_id: row.state for row in view.rows} for view in (before, after)]
    return states[0] != states[1]


def node_view(connection: sqlite3.Connection) -> NodeView:
    """Read a node's store."""
    rows = connection.execute(
        "SELECT id, state, generation, attempt_id, pod_uid, artifact_id, restoring, named FROM sandboxes ORDER BY id"
    )
    fences = connection.execute(
        "SELECT sandbox_id, claimed, claimed_attempt, retired, delete_receipt IS NOT NULL FROM fences"
        " ORDER BY sandbox_id"
    )
    ((artifacts, jobs),) = connection.execute(
        "SELECT (SELECT count(*) FROM artifacts), (SELECT count(*) FROM upload_jobs)"
    )
    return NodeView(
        rows=tuple(Row(*row) for row in rows),
        fences=tuple(FenceRow(*row) for row in fences),
        artifacts=artifacts,
        jobs=jobs,
    )


def registry_view(connection: sqlite3.Connection) -> dict[str, Known]:
    """Read the registry."""
    rows = connection.execute(
        "SELECT id, state, generation, attempt_id, pod_uid, node, artifact_id, artifact_digest FROM sandboxes"
    )
    return {row[0]: Known(*row) for row in rows}
