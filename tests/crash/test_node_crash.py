"""Every operation of a node, cut at each of its points: by a kill, and by a failure of the step; then recovery (I13).

A kill forgets the operation and opens the database anew on the machine as it is. After it, and after recovery, the
sandbox rests on the original artifact or on its successor, what was acknowledged is there, and it can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flux.core.errors import FluxError
from flux.core.fence import Fact
from flux.core.lifecycle import AT_REST, NodeState
from flux.core.node import Capture, Destroy, Evict, Inventory, Stop, Suspend, TearDown
from flux.engine.node import (
    activate,
    capture,
    collect,
    destroy,
    evict,
    inventory,
    recover,
    stop,
    suspend,
    teardown,
    uploads,
)
from flux.failpoints import Point, Steps
from tests.engine.node.kit import ID, Kit

Operation = tuple[Callable[[Kit], Any], Callable[[Kit], Steps[Any]]]


def _running(kit: Kit) -> None:
    kit.activate(2, kit.suspended())
    kit.machine.write(ID, "second", "acknowledged")


def _backed_up(kit: Kit) -> None:
    kit.suspended()
    kit.backed_up()
    kit.clock.advance(1000)


def _abandoned(kit: Kit) -> None:
    original = kit.suspended()
    kit.machine.fail("discard")
    kit.machine.fail("start", after=True)
    with pytest.raises(FluxError):
        kit.activate(2, original)


def _restore(kit: Kit) -> Steps[Any]:
    return activate.steps(kit.node, kit.activation(2, kit.suspended()))


OPERATIONS: dict[str, Operation] = {
    "create": (lambda kit: None, lambda kit: activate.steps(kit.node, kit.activation(1, create=True))),
    "start": (lambda kit: None, _restore),
    "start-evicted": (lambda kit: None, lambda kit: activate.steps(kit.node, kit.activation(2, kit.evicted()))),
    "suspend": (_running, lambda kit: suspend.steps(kit.node, Suspend(**kit.evidence(2)))),
    "capture": (_running, lambda kit: capture.steps(kit.node, Capture(**kit.evidence(2), snapshot_id="shot"))),
    "stop": (_running, lambda kit: stop.steps(kit.node, Stop(**kit.evidence(2)))),
    "teardown": (_running, lambda kit: teardown.steps(kit.node, TearDown(**kit.evidence(2)))),
    "evict": (_backed_up, lambda kit: evict.steps(kit.node, Evict(**kit.evidence(1)))),
    "evict-idle": (_backed_up, lambda kit: evict.sweep(kit.node)),
    "destroy": (
        _running,
        lambda kit: destroy.steps(kit.node, Destroy(sandbox_id=ID, node_store_id=kit.manager.store_id)),
    ),
    "stale": (
        _running,
        lambda kit: inventory.steps(
            kit.node,
            Inventory(node_store_id=kit.manager.store_id, facts=(Fact(sandbox_id=ID, generation=5, confirmed=1),)),
        ),
    ),
    "upload": (lambda kit: kit.suspended(), lambda kit: uploads.work_once(kit.node)),
    "collect": (_backed_up, lambda kit: collect.steps(kit.node)),
    "recover": (_abandoned, lambda kit: recover.steps(kit.node)),
}


def _cut(kit: Kit, name: str, number: int) -> tuple[Steps[Any], Point | None]:
    """Bring an operation to its ``number``-th point, from 1; ``None`` if it has fewer."""
    prepare, make = OPERATIONS[name]
    prepare(kit)
    steps = make(kit)
    point = None
    for _ in range(number):
        try:
            point = next(steps)
        except StopIteration:
            return steps, None
    return steps, point


def _sound(kit: Kit, name: str) -> None:
    """I7, I13: at rest, nothing frozen, nothing without a row, every artifact that is named is there."""
    kit.clock.advance(1000)
    kit.manager.reconcile()
    row, machine = kit.row(), kit.machine
    assert machine.frozen == set()
    if row is None:
        assert (machine.trees, machine.running) == ({}, set())
        assert kit.fence().retired >= kit.fence().claimed  # a row that was deleted never comes back as it was
        return
    assert row.state in AT_REST
    assert (row.restoring, row.named, row.prior_state) == (None, None, None)
    live = [(ID, row.generation)] if row.state is NodeState.RUNNING else []
    assert sorted(machine.running) == live
    assert sorted(machine.trees) == live
    assert row.artifact_id is None or row.artifact_id in {*machine.saved, *machine.remote.saved}
    assert (row.state is NodeState.SUSPENDED) <= (row.artifact_id is not None)


def _goes_on(kit: Kit, name: str) -> None:
    """I2, I12: the next generation starts from what the row rests on; a destroyed sandbox never does."""
    row = kit.row()
    if kit.fence().retired > 100:
        with pytest.raises(FluxError) as caught:
            kit.activate(9)
        assert caught.value.details["reason"] == "RetiredGeneration"
        return
    if row is not None and row.state is NodeState.RUNNING:
        kit.suspend(row.generation or 0)
        row = kit.must()
    with kit.database.reading() as tx:
        rests_on = None if row is None or row.artifact_id is None else _reference(tx, row.artifact_id)
    kit.activate(9, rests_on)
    if rests_on is not None:
        assert kit.machine.restored_from(ID, 9) == rests_on.id
        assert (kit.machine.files(ID).get("file") == "original") or name == "create"
    if name in ("suspend", "teardown", "capture"):
        assert kit.machine.files(ID)["second"] == "acknowledged"


def _reference(tx: Any, artifact_id: str) -> Any:
    from flux.store import artifact_rows

    return artifact_rows.reference(tx, artifact_id)


@pytest.mark.parametrize("survives", [True, False], ids=["in-place", "host-bound"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_i13_after_a_kill_at_any_point_recovery_brings_everything_to_rest(
    tmp_path: Path, name: str, survives: bool
) -> None:
    number = 0
    while True:
        number += 1
        kit = Kit(_folder(tmp_path, number))
        steps, point = _cut(kit, name, number)
        if point is None:
            break
        if not survives:
            kit.machine.survives = frozenset()
            kit.machine.power_cycle()
            for key in list(kit.machine.trees):
                if name in ("suspend", "teardown", "capture") and kit.must().named is None:
                    kit.machine.running.add(key)  # only the manager died: nothing acknowledged may be lost
        kit.crash()
        steps.close()  # what a forgotten operation still does reaches nothing
        _sound(kit, name)
        _goes_on(kit, name)
        kit.database.close()
    assert number > 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_after_a_failure_at_any_point_mending_brings_everything_to_rest(tmp_path: Path, name: str) -> None:
    number = 0
    while True:
        number += 1
        kit = Kit(_folder(tmp_path, number))
        steps, point = _cut(kit, name, number)
        if point is None:
            break
        try:
            steps.throw(OSError(5, "I/O error", point.value))
            while True:
                next(steps)
        except StopIteration:
            pass  # it was not about this step's outcome any more
        except (FluxError, OSError):
            pass
        assert kit.node.desk.state.held == ()
        assert kit.manager.mend().problems == []
        _sound(kit, name)
        _goes_on(kit, name)
        kit.database.close()
    assert number > 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_during_the_recovery_from_a_kill_is_recovered_from(tmp_path: Path, name: str) -> None:
    number = 0
    while True:
        number += 1
        kit = Kit(_folder(tmp_path, number))
        steps, point = _cut(kit, name, number)
        if point is None:
            break
        kit.crash(recover=False)
        steps.close()
        recovery = recover.steps(kit.node)
        for _ in range(number % 3 + 1):
            next(recovery, None)
        kit.crash()
        recovery.close()
        _sound(kit, name)
        _goes_on(kit, name)
        kit.database.close()


def _folder(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / str(number)
    folder.mkdir()
    return folder
