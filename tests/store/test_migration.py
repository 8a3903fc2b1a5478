"""Migration 2 on a database that the release before it wrote (``golden/0001.sql``): what ran goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from flux.core.fence import Fence, NodeRow
from flux.core.lifecycle import NodeState
from flux.core.route import GENERATION_MAX
from flux.store import fences, keys, sandboxes
from flux.store.database import Database
from flux.testing.clock import FakeClock

GOLDEN = Path(__file__).parent / "golden" / "0001.sql"


@pytest.fixture
def database(tmp_path: Path, clock: FakeClock) -> Database:
    path = tmp_path / "flux.db"
    raw = sqlite3.connect(path)
    raw.executescript(GOLDEN.read_text())
    raw.close()
    return Database(str(path), clock)


def test_what_ran_goes_on_as_generation_1(database: Database) -> None:
    with database.reading() as tx:
        row = sandboxes.row(tx, "sb0000000000000001")
        assert row == NodeRow(
            sandbox_id="sb0000000000000001",
            state=NodeState.RUNNING,
            version=1,
            generation=1,
            attempt_id="imported",
            pod_uid="imported",
            last_activity=1_700_000_000.5,
            bound=True,
        )
        record = sandboxes.find(tx, "box")
        assert record is not None
        assert (record.id, record.state, record.generation) == ("sb0000000000000001", NodeState.RUNNING, 1)
        assert (record.workspace, record.owner, record.expires_at) == ("/w", "ky1", 1_700_003_600.5)
        fence = fences.find(tx, "sb0000000000000001")
        assert (fence.claimed, fence.claimed_attempt, fence.retired) == (1, "imported", 0)
        managed = sandboxes.row(tx, "sb0000000000000002")
        assert managed is not None
        assert not managed.bound


def test_what_was_being_deleted_is_destroyed_for_ever(database: Database) -> None:
    with database.reading() as tx:
        row = sandboxes.row(tx, "sb0000000000000004")
        assert row is not None
        assert (row.state, row.intent) == (NodeState.DELETING, "destroyed")
        assert fences.find(tx, "sb0000000000000004").retired == GENERATION_MAX
        assert fences.find(tx, "sb0000000000000003") == Fence()


def test_keys_stay_and_numbers_go_on(database: Database) -> None:
    with database.transaction() as tx:
        assert [key.id for key in keys.every(tx)] == ["ky1"]
        assert tx.every("SELECT number FROM sandboxes WHERE state = 'running' ORDER BY number") == [(1,), (2,)]
        assert tx.one("PRAGMA user_version") == (2,)
        assert tx.one("PRAGMA foreign_key_check") is None
        assert sandboxes.delete(tx, "sb0000000000000001", 1)


def test_a_new_row_gets_a_number_of_its_own(database: Database) -> None:
    with database.transaction() as tx:
        row, record = sandboxes.row(tx, "sb0000000000000002"), sandboxes.record(tx, "sb0000000000000002")
        assert row is not None
        assert record is not None
        assert sandboxes.delete(tx, "sb0000000000000004", 1)
        sandboxes.insert(tx, NodeRow(sandbox_id="sb5", state=NodeState.CREATED, version=1), record)
        assert tx.one("SELECT number FROM sandboxes WHERE id = 'sb5'") == (5,)
