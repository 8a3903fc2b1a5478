"""The table of the sandboxes on this node: rows guarded by their version, records beside them."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
import pytest

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.store import sandboxes
from flux.store.stores import Stores
from tests.store import samples

FULL = samples.row(
    state=NodeState.ACTIVATING,
    version=7,
    generation=3,
    attempt_id="null",  # text that a lax reader would take for nothing
    pod_uid="3",
    prior_state=NodeState.SUSPENDED,
    prior_generation=1,
    prior_pod_uid="p1",
    artifact_id="a" * 32,
    restoring="b" * 32,
    named="c" * 32,
    backup=True,
    last_activity=12.5,
    receipt="{}",
    bound=True,
)


def add(stores: Stores, row: NodeRow, **record: Any) -> None:
    with stores.database.transaction() as tx:
        sandboxes.insert(tx, row, samples.sandbox(row.sandbox_id, **record))


def read(stores: Stores, sandbox_id: str = "sb1") -> NodeRow | None:
    with stores.database.reading() as tx:
        return sandboxes.row(tx, sandbox_id)


@pytest.mark.parametrize("row", [samples.row(), FULL], ids=["few", "all"])
def test_a_row_is_read_as_it_was_written(stores: Stores, row: NodeRow) -> None:
    add(stores, row)
    assert read(stores) == row
    assert read(stores, "sb2") is None


def test_an_update_bumps_the_version_and_needs_the_one_it_read(stores: Stores) -> None:
    add(stores, samples.row())
    with stores.database.transaction() as tx:
        written = sandboxes.update(tx, msgspec.structs.replace(samples.row(), last_activity=5.0))
    assert written == samples.row(version=2, last_activity=5.0)
    assert read(stores) == written
    with stores.database.transaction() as tx:
        assert sandboxes.update(tx, samples.row(last_activity=9.0)) is None
        assert sandboxes.update(tx, samples.row("sb2")) is None
    assert read(stores) == written


def test_an_update_writes_every_column(stores: Stores) -> None:
    add(stores, samples.row(version=7))
    with stores.database.transaction() as tx:
        written = sandboxes.update(tx, FULL)
    assert written == msgspec.structs.replace(FULL, version=8)
    assert read(stores) == written


def test_a_deletion_needs_the_version_it_read(stores: Stores) -> None:
    add(stores, samples.row(version=4))
    with stores.database.transaction() as tx:
        assert not sandboxes.delete(tx, "sb1", 3)
        assert not sandboxes.delete(tx, "sb2", 4)
    assert read(stores) == samples.row(version=4)
    with stores.database.transaction() as tx:
        assert sandboxes.delete(tx, "sb1", 4)
    assert read(stores) is None


@pytest.mark.parametrize(
    "half",
    [
        {"pod_uid": None},
        {"generation": None},
        {"prior_generation": 1},
        {"prior_pod_uid": "p"},
        {"state": NodeState.ACTIVATING},
        {"prior_state": NodeState.CREATED},
        {"state": NodeState.DELETING},
        {"generation": 0},
        {"version": 0},
    ],
    ids=lambda half: "-".join(half),
)
def test_the_table_itself_refuses_what_makes_no_sense(stores: Stores, half: dict[str, Any]) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        add(stores, samples.row(**half))
    assert read(stores) is None


def test_the_record_has_the_state_and_generation_of_its_row(stores: Stores) -> None:
    add(stores, samples.row(state=NodeState.SUSPENDED, generation=4), name="box")
    with stores.database.reading() as tx:
        found = sandboxes.record(tx, "sb1")
        assert found == samples.sandbox(name="box", state=NodeState.SUSPENDED, generation=4)
        assert sandboxes.find(tx, "sb1") == found
        assert sandboxes.find(tx, "box") == found
        assert sandboxes.find(tx, "other") is None
        assert sandboxes.record(tx, "sb2") is None


def test_a_name_is_that_of_the_newest_and_free_of_those_being_deleted(stores: Stores) -> None:
    add(stores, samples.row(), name="box")
    add(stores, samples.row("sb2"), name="box")
    add(stores, samples.row("sb3", state=NodeState.DELETING, intent="evicted"), name="box")
    with stores.database.reading() as tx:
        found = sandboxes.find(tx, "box")
        assert found is not None
        assert found.id == "sb2"


def test_only_the_record_of_a_running_row_is_replaced_from_outside(stores: Stores) -> None:
    add(stores, samples.row())
    add(stores, samples.row("sb2", state=NodeState.SUSPENDING))
    with stores.database.transaction() as tx:
        assert sandboxes.replace_record(tx, samples.sandbox(baseline_at=3.0, name="n"))
        assert not sandboxes.replace_record(tx, samples.sandbox("sb2", baseline_at=3.0))
        assert sandboxes.record(tx, "sb1") == samples.sandbox(baseline_at=3.0, name="n", generation=1)
        assert sandboxes.find(tx, "n") is not None
    assert read(stores) == samples.row(version=2)
    assert read(stores, "sb2") == samples.row("sb2", state=NodeState.SUSPENDING)


def test_a_credential_opens_only_its_own_running_sandbox(stores: Stores) -> None:
    add(stores, samples.row())
    with stores.database.transaction() as tx:
        sandboxes.set_credential(tx, "sb1", "digest")
        assert sandboxes.by_credential(tx, "sb1", "digest") == samples.sandbox(generation=1)
        assert sandboxes.by_credential(tx, "sb1", "other") is None
        assert sandboxes.by_credential(tx, "sb2", "digest") is None
        sandboxes.update(tx, samples.row(state=NodeState.STOPPED))
        assert sandboxes.by_credential(tx, "sb1", "digest") is None
        sandboxes.set_credential(tx, "sb1", None)
        sandboxes.update(tx, samples.row(version=2))
        assert sandboxes.by_credential(tx, "sb1", "digest") is None


def test_a_backup_is_marked_on_rows_at_rest_only(stores: Stores) -> None:
    add(stores, samples.row(state=NodeState.SUSPENDED, artifact_id="x"))
    add(stores, samples.row("sb2", state=NodeState.SUSPENDING, artifact_id="x"))
    add(stores, samples.row("sb3", artifact_id="y"))
    with stores.database.transaction() as tx:
        assert sandboxes.set_backup(tx, "x") == 1
        assert sandboxes.set_backup(tx, "x") == 0
    assert read(stores) == samples.row(state=NodeState.SUSPENDED, artifact_id="x", backup=True, version=2)
    assert read(stores, "sb2") == samples.row("sb2", state=NodeState.SUSPENDING, artifact_id="x")


def test_rows_are_listed_by_what_they_are_doing(stores: Stores) -> None:
    add(stores, samples.row("sb1"))
    add(stores, samples.row("sb2", state=NodeState.SUSPENDED, last_activity=20.0))
    add(stores, samples.row("sb3", state=NodeState.STOPPED, last_activity=10.0))
    add(stores, samples.row("sb4", state=NodeState.STOPPING))
    with stores.database.reading() as tx:
        assert [row.sandbox_id for row in sandboxes.rows(tx)] == ["sb1", "sb2", "sb3", "sb4"]
        assert [row.sandbox_id for row in sandboxes.rows_in_flight(tx)] == ["sb4"]
        assert [row.sandbox_id for row in sandboxes.rows_by_activity(tx)] == ["sb3", "sb2"]
        assert sandboxes.count(tx) == 1
