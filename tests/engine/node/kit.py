"""One node on a machine in memory, and short ways to ask it. The machine and the database outlive the manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.core.fence import Ended, Fact, Fence, NodeRow
from flux.core.lifecycle import NodeState
from flux.core.node import (
    Activate,
    Activated,
    ArtifactReference,
    Capture,
    Captured,
    Destroy,
    Evict,
    Inventoried,
    Inventory,
    Stop,
    Stopped,
    Suspend,
    Suspended,
    TearDown,
    TornDown,
)
from flux.core.route import Execution, Route
from flux.core.sandbox import Sandbox
from flux.engine.node.manager import NodeManager
from flux.engine.node.node import Disk, Node, NodeSettings
from flux.store import artifact_rows, fences, sandboxes, upload_jobs
from flux.store.database import Database
from flux.testing.clock import FakeClock
from flux.testing.executions import FakeArtifacts, FakeExecutions, FakeMachine

SETTINGS = NodeSettings(evict_idle_seconds=100.0, orphan_age_seconds=60.0, address="http://node", kinds=("fake",))
ID = "s1"


class Kit:
    """The node and its surroundings."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = FakeClock()
        self.machine = FakeMachine(self.clock)
        self.settings = msgspec.structs.replace(SETTINGS, **settings)
        self.ended: list[str] = []
        self._path = str(folder / "flux.db")
        self.manager = self._open()

    def _open(self) -> NodeManager:
        self.database = Database(self._path, self.clock)
        return NodeManager(
            self.database,
            FakeExecutions(self.machine),
            FakeArtifacts(self.machine),
            self.clock,
            self.settings,
            disk=lambda: Disk(total=1 << 40, free=self.machine.free),
            destroyed=lambda sandbox: self.ended.append(sandbox.id),
        )

    @property
    def node(self) -> Node:
        return self.manager.node

    def crash(self, *, recover: bool = True) -> None:
        """End the manager as a kill does, and start another one."""
        self.database.close()
        self.manager = self._open()
        if recover:
            assert self.manager.recover().problems == []

    def sandbox(self, sandbox_id: str = ID, **differently: Any) -> Sandbox:
        record = Sandbox(
            id=sandbox_id, kind="fake", layout="managed", state=NodeState.CREATED, created_at=1.0,
            root_device=1, root_inode=1,
        )  # fmt: skip
        return msgspec.structs.replace(record, **differently)

    def activation(
        self, generation: int, artifact: ArtifactReference | None = None, sandbox_id: str = ID, **differently: Any
    ) -> Activate:
        request = Activate(
            sandbox_id=sandbox_id,
            node_store_id=self.manager.store_id,
            route=Route(generation=generation, attempt_id=f"a{generation}", pod_uid=f"p{generation}"),
            sandbox=self.sandbox(sandbox_id),
            artifact=artifact,
        )
        return msgspec.structs.replace(request, **differently)

    def activate(
        self, generation: int, artifact: ArtifactReference | None = None, sandbox_id: str = ID, **differently: Any
    ) -> Activated:
        return self.manager.activate(self.activation(generation, artifact, sandbox_id, **differently))

    def evidence(self, generation: int, pod_uid: str | None = None, sandbox_id: str = ID) -> dict[str, Any]:
        execution = Execution(generation=generation, pod_uid=pod_uid or f"p{generation}")
        return {"sandbox_id": sandbox_id, "node_store_id": self.manager.store_id, "execution": execution}

    def suspend(self, generation: int, pod_uid: str | None = None, sandbox_id: str = ID) -> Suspended:
        return self.manager.suspend(Suspend(**self.evidence(generation, pod_uid, sandbox_id)))

    def stop(self, generation: int, pod_uid: str | None = None) -> Stopped:
        return self.manager.stop(Stop(**self.evidence(generation, pod_uid)))

    def tear_down(self, generation: int, pod_uid: str | None = None) -> TornDown:
        return self.manager.tear_down(TearDown(**self.evidence(generation, pod_uid)))

    def evict(self, generation: int, pod_uid: str | None = None) -> None:
        self.manager.evict(Evict(**self.evidence(generation, pod_uid)))

    def capture(self, generation: int, snapshot_id: str = "shot", pod_uid: str | None = None) -> Captured:
        return self.manager.capture(Capture(**self.evidence(generation, pod_uid), snapshot_id=snapshot_id))

    def destroy(self, sandbox_id: str = ID) -> None:
        self.manager.destroy(Destroy(sandbox_id=sandbox_id, node_store_id=self.manager.store_id))

    def inventory(self, *facts: Fact) -> Inventoried:
        return self.manager.inventory(Inventory(node_store_id=self.manager.store_id, facts=facts))

    def suspended(self, sandbox_id: str = ID) -> ArtifactReference:
        """Run generation 1, write a file, suspend it; return the original artifact."""
        self.activate(1, sandbox_id=sandbox_id)
        self.machine.write(sandbox_id, "file", "original")
        return self.suspend(1, sandbox_id=sandbox_id).artifact

    def rolled_back(self) -> ArtifactReference:
        """Suspend generation 1, and let generation 2 fail its prepare; return the original artifact."""
        original = self.suspended()
        self.machine.fail("prepare")
        with failing("PrepareFailed", Code.INTERNAL):
            self.activate(2, original)
        return original

    def backed_up(self) -> None:
        """Upload everything."""
        while self.manager.upload_once():
            pass

    def evicted(self) -> ArtifactReference:
        """Suspend generation 1, upload it, evict it; return the artifact."""
        original = self.suspended()
        self.backed_up()
        self.clock.advance(1000)
        self.evict(1)
        return msgspec.structs.replace(original, durable=True)

    # What there is

    def row(self, sandbox_id: str = ID) -> NodeRow | None:
        with self.database.reading() as tx:
            return sandboxes.row(tx, sandbox_id)

    def must(self, sandbox_id: str = ID) -> NodeRow:
        row = self.row(sandbox_id)
        assert row is not None
        return row

    def fence(self, sandbox_id: str = ID) -> Fence:
        with self.database.reading() as tx:
            return fences.find(tx, sandbox_id)

    def endings(self, sandbox_id: str = ID) -> dict[int, tuple[str, str | None]]:
        return {one.generation: (one.ended_as.value, one.artifact_id) for one in self.fence(sandbox_id).ended}

    def artifacts(self) -> list[str]:
        with self.database.reading() as tx:
            return [row.id for row in artifact_rows.every(tx)]

    def jobs(self) -> int:
        with self.database.reading() as tx:
            return upload_jobs.count(tx)

    def contents(self) -> list[str]:
        """Return everything that the store holds, to see that nothing has changed."""
        with self.database.reading() as tx:
            tables = [
                name
                for (name,) in tx.every("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
                if not name.startswith("sqlite_")
            ]
            return [f"{table}: {tx.every(f'SELECT * FROM {table}')}" for table in tables]

    def set_receipt(self, receipt: str | None) -> None:
        """Damage the row's receipt."""
        with self.database.transaction() as tx:
            tx.execute("UPDATE sandboxes SET receipt = ?", (receipt,))


class Failing:
    """Expects an error with a code and a reason: ``with failing("RouteHeld", Code.FENCED) as caught``."""

    def __init__(self, reason: str | None, code: Code, text: str) -> None:
        self._reason, self._code, self._text = reason, code, text
        self._raises = pytest.raises(FluxError)

    def __enter__(self) -> pytest.ExceptionInfo[FluxError]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(self, *details: Any) -> bool:
        if not self._raises.__exit__(*details):
            return False
        error = self._caught.value
        assert (error.details.get("reason"), error.code) == (self._reason, self._code), error.message
        assert self._text in error.message
        return True


def failing(reason: str | None, code: Code, text: str = "") -> Failing:
    """Return a block's expectation."""
    return Failing(reason, code, text)


def ended(kit: Kit, generation: int) -> Ended:
    """Return how a generation ended."""
    found = kit.fence().ending_of(generation)
    assert found is not None
    return found
