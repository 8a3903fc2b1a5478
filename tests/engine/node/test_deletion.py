"""Evict, destroy, stale rows: each leaves its delete receipt before the row goes, by one function (§4, §8)."""

from __future__ import annotations

import pytest

from flux.core.errors import Code, FluxError
from flux.core.fence import Fact
from flux.core.lifecycle import NodeState
from flux.core.node import Destroy, Evict, Suspend
from flux.core.receipts import DeleteReceipt
from flux.core.route import GENERATION_MAX
from flux.engine.node import activate, deletion, destroy, evict, suspend
from flux.failpoints import Point
from flux.store import fences, sandboxes
from tests.engine.node.kit import ID, Kit, failing


def receipt(kit: Kit, sandbox_id: str = ID) -> DeleteReceipt | None:
    with kit.database.reading() as tx:
        return fences.delete_receipt(tx, sandbox_id)


def covers(kit: Kit) -> tuple[int, str]:
    found = receipt(kit)
    assert found is not None
    return found.covers_generation, found.reason


def test_an_eviction_covers_the_rolled_back_generation_too(kit: Kit) -> None:
    kit.rolled_back()
    kit.backed_up()
    kit.clock.advance(1000)
    kit.evict(1)
    assert (kit.row(), covers(kit), kit.fence().retired) == (None, (2, "evicted"), 2)


def test_only_what_is_idle_and_backed_up_is_evicted(kit: Kit) -> None:
    kit.suspended()
    kit.clock.advance(1000)
    with failing("NotEvictable", Code.ILLEGAL_STATE, "not confirmed by the object store"):
        kit.evict(1)
    assert kit.manager.evict_idle() == []
    kit.backed_up()
    assert kit.must().backup
    kit.clock.advance(-950)
    with failing("NotEvictable", Code.ILLEGAL_STATE):
        kit.evict(1)
    assert receipt(kit) is None


def test_a_full_disk_evicts_what_was_used_least_recently(kit: Kit) -> None:
    for number in range(3):
        kit.suspended(f"s{number}")
        kit.clock.advance(1)
    kit.backed_up()
    kit.settings = kit.settings
    kit.machine.free = 0
    kit.node.settings = type(kit.settings)(evict_idle_seconds=1e9, disk_free_least=10)

    real = kit.node.disk

    def filling() -> object:
        kit.machine.free += 4
        return real()

    kit.node.disk = filling  # type: ignore[assignment]
    assert kit.manager.evict_idle() == ["s0", "s1"]
    assert kit.row("s2") is not None


def test_a_changed_witness_drops_the_receipt_too(kit: Kit) -> None:
    kit.suspended()
    old = kit.must()
    with kit.database.transaction() as tx:
        sandboxes.update(tx, old)
    with pytest.raises(deletion.WitnessChanged), kit.database.transaction() as tx:
        deletion.delete_row(tx, old)
    assert (receipt(kit), kit.fence().retired) == (None, 0)
    assert kit.must().version == old.version + 1


def test_destroy_covers_everything_for_ever_also_without_a_row(kit: Kit) -> None:
    """I4."""
    kit.activate(1)
    kit.destroy()
    kit.destroy("never")
    for sandbox_id in (ID, "never"):
        found = receipt(kit, sandbox_id)
        assert found is not None
        assert (found.covers_generation, found.reason) == (GENERATION_MAX, "destroyed")
        with failing("RetiredGeneration", Code.FENCED):
            kit.activate(GENERATION_MAX, sandbox_id=sandbox_id)
    assert (kit.machine.trees, kit.machine.running, kit.ended) == ({}, set(), [ID])
    before = kit.contents()
    kit.destroy()
    assert kit.contents() == before


def test_destroy_wins_against_an_activation_at_any_point(kit: Kit) -> None:
    for number in range(1, 7):
        sandbox_id = f"s{number}"
        starting = activate.steps(kit.node, kit.activation(1, sandbox_id=sandbox_id))
        for _ in range(number):
            next(starting)
        killing = destroy.steps(kit.node, Destroy(sandbox_id=sandbox_id, node_store_id=kit.manager.store_id))
        assert next(killing) is Point.DELETE_INTENT
        with failing("RetiredGeneration", Code.FENCED):
            while True:
                next(starting)
        with pytest.raises(StopIteration):
            while True:
                next(killing)
        assert (kit.row(sandbox_id), kit.machine.trees, kit.machine.running) == (None, {}, set())


def test_destroy_waits_for_a_suspension_that_it_takes_the_row_from(kit: Kit) -> None:
    kit.activate(1)
    saving = suspend.steps(kit.node, Suspend(**kit.evidence(1)))
    while next(saving) is not Point.SUSPEND_CAPTURED:
        pass
    killing = destroy.steps(kit.node, Destroy(sandbox_id=ID, node_store_id=kit.manager.store_id))
    assert [next(killing), next(killing), next(killing)] == [
        Point.DELETE_INTENT, Point.TEARDOWN_WAITED, Point.TEARDOWN_WAITED,
    ]  # fmt: skip
    with failing("UnknownSandbox", Code.NOT_FOUND, "being destroyed"):
        while True:
            next(saving)
    with pytest.raises(StopIteration):
        while True:
            next(killing)
    assert (kit.row(), kit.artifacts(), kit.jobs(), kit.machine.frozen) == (None, [], 0, set())


def test_destroy_takes_a_row_from_an_eviction(kit: Kit) -> None:
    kit.suspended()
    kit.backed_up()
    kit.clock.advance(1000)
    evicting = evict.steps(kit.node, Evict(**kit.evidence(1)))
    assert next(evicting) is Point.DELETE_INTENT
    killing = destroy.steps(kit.node, Destroy(sandbox_id=ID, node_store_id=kit.manager.store_id))
    assert next(killing) is Point.DELETE_INTENT
    with pytest.raises(StopIteration):
        while True:
            next(evicting)
    assert kit.must().intent == "destroyed"
    with pytest.raises(StopIteration):
        while True:
            next(killing)
    assert covers(kit) == (GENERATION_MAX, "destroyed")


def test_two_destroys_are_one(kit: Kit) -> None:
    kit.activate(1)
    one, two = (destroy.steps(kit.node, Destroy(sandbox_id=ID, node_store_id=kit.manager.store_id)) for _ in range(2))
    assert [next(one), next(two), next(two)] == [Point.DELETE_INTENT, Point.DELETE_INTENT, Point.TEARDOWN_WAITED]
    for steps in (one, two):
        with pytest.raises(StopIteration):
            while True:
                next(steps)
    assert kit.ended == [ID]


def test_a_removal_that_fails_is_repeated(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.fail("remove")
    with pytest.raises(FluxError):
        kit.destroy()
    assert kit.must().state is NodeState.DELETING
    kit.destroy()
    assert kit.row() is None


def test_a_row_is_stale_only_by_a_greater_generation(kit: Kit) -> None:
    original = kit.suspended()
    kit.inventory(Fact(sandbox_id=ID, generation=1, artifact_id="other"), Fact(sandbox_id="x", generation=9))
    assert kit.row() is not None
    kit.inventory(Fact(sandbox_id=ID, generation=2, artifact_id=original.id))
    assert kit.row() is not None  # it holds the current artifact
    kit.inventory(Fact(sandbox_id=ID, generation=2, artifact_id="other"))
    assert (kit.row(), covers(kit)) == (None, (1, "stale"))


def test_a_stale_execution_is_ended_and_not_saved(kit: Kit) -> None:
    original = kit.suspended()
    kit.activate(2, original)
    kit.inventory(Fact(sandbox_id=ID, generation=3, artifact_id=original.id))
    assert (kit.must().state, kit.machine.running, kit.artifacts()) == (NodeState.STOPPED, set(), [original.id])
    assert (kit.endings()[2], kit.fence().retired) == (("superseded", None), 2)


def test_a_tombstone_destroys_and_is_acknowledged_and_confirmed(kit: Kit) -> None:
    kit.activate(1)
    found = kit.inventory(
        Fact(sandbox_id=ID, generation=1, destroyed=True), Fact(sandbox_id="never", generation=1, destroyed=True)
    )
    assert (found.done, kit.row(), kit.endings()) == ((ID, "never"), None, {})
    assert {(row.sandbox_id, row.state.value, row.floor) for row in found.rows} == {
        (ID, "gone", GENERATION_MAX),
        ("never", "gone", GENERATION_MAX),
    }


def test_endings_are_reported_until_they_are_confirmed(kit: Kit) -> None:
    original = kit.evicted()
    found = kit.inventory()
    assert [(row.state, row.floor, row.ended[0].artifact_id) for row in found.rows] == [
        (NodeState.GONE, 1, original.id)
    ]
    assert kit.inventory(Fact(sandbox_id=ID, generation=1, confirmed=1)).rows[0].ended == ()
    assert kit.inventory().rows == ()
