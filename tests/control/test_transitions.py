"""What the registry accepts is guarded by what its caller acted on: compare-and-set (spec: generations, §6)."""

from __future__ import annotations

import msgspec
import pytest

from flux.control import transitions
from flux.control.transitions import Saved
from flux.core.lifecycle import ControlEvent, ControlState
from flux.core.node import ArtifactReference
from flux.store.registry.sandboxes import SandboxRow
from tests.control.kit import World

NEWER = ArtifactReference(id="f" * 32, digest="f" * 64)


def paused_twice(world: World) -> SandboxRow:
    """Return the row of a sandbox that runs its third generation, on what the second one saved."""
    sandbox = world.create().sandbox.id
    for _ in range(2):
        world.machine.write(sandbox, "f", "x")
        world.pause(sandbox)
        world.connect(sandbox)
    return world.row(sandbox)


@pytest.mark.parametrize("change", ["artifact_id", "generation", "attempt_id", "state"])
def test_who_acted_on_something_else_changes_nothing(world: World, change: str) -> None:
    row = paused_twice(world)
    other = {"artifact_id": "0" * 32, "generation": 2, "attempt_id": "other", "state": ControlState.PAUSING}[change]
    stale = msgspec.structs.replace(row, **{change: other})
    saved = Saved(generation=row.generation, artifact=NEWER)
    assert transitions.rest(world.control, stale, ControlEvent.PAUSED, saved, stopped=False) is None
    assert world.row(row.id) == row
    assert transitions.rest(world.control, row, ControlEvent.PAUSED, saved, stopped=False) is not None
    assert world.row(row.id).artifact_id == NEWER.id


@pytest.mark.parametrize(("generation", "accepted"), [(1, False), (2, False), (3, True)])
def test_a_late_artifact_of_an_older_execution_changes_nothing(world: World, generation: int, accepted: bool) -> None:
    row = paused_twice(world)
    assert row.artifact_generation == 2
    with world.registry.transaction() as tx:
        changes = transitions.accepted(tx, row, Saved(generation=generation, artifact=NEWER))
    assert bool(changes) is accepted
    assert changes.get("artifact_id") == (NEWER.id if accepted else None)


def test_an_artifact_that_is_current_already_is_not_accepted_again(world: World) -> None:
    row = paused_twice(world)
    assert row.artifact is not None
    with world.registry.transaction() as tx:
        assert transitions.accepted(tx, row, Saved(generation=3, artifact=row.artifact)) == {}
