"""The state table, every pair of it, by the engine's own doors (spec: speculation)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from flux.core.changeset import LIFE, Event, State
from flux.core.errors import Code
from flux.core.sandbox import Sandbox
from flux.engine.results import ChangesetDetail
from tests.engine.kit import ADMIN, Kit, refused

DOORS: dict[Event, Callable[[Kit, ChangesetDetail], ChangesetDetail]] = {
    Event.APPROVE: Kit.approve,
    Event.REJECT: Kit.reject,
    Event.APPLY: Kit.apply,
}


def bring(kit: Kit, sandbox: Sandbox, state: State) -> ChangesetDetail:
    """Make a changeset that has come into ``state``."""
    made = kit.speculate(sandbox, "echo new > f")
    if state in (State.APPROVED, State.APPLIED, State.FAILED):
        kit.approve(made)
    if state is State.APPLIED:
        kit.apply(made)
    elif state is State.REJECTED:
        kit.reject(made)
    elif state is State.EXPIRED:
        kit.clock.advance(3600)
    elif state is State.FAILED:
        (blob,) = (kit.state / "changesets" / made.changeset.id / "blobs").iterdir()
        blob.write_bytes(b"evil")
        with refused(Code.CONFLICT):
            kit.apply(made)
    assert kit.state_of(made) is state
    return made


@pytest.mark.parametrize("event", DOORS)
@pytest.mark.parametrize("state", State)
def test_every_pair_is_allowed_or_refused_and_writes_nothing(
    kit: Kit, sandbox: Sandbox, state: State, event: Event
) -> None:
    made = bring(kit, sandbox, state)
    if LIFE.allows(state, event):
        assert DOORS[event](kit, made).changeset.state is LIFE.next(state, event)
        assert kit.state_of(made) is LIFE.next(state, event)
        return
    meta = kit.state / "changesets" / made.changeset.id / "meta.json"
    before, events = meta.read_bytes(), kit.events()
    tree = sorted(path.name for path in kit.work.iterdir())
    with refused(Code.EXPIRED if state is State.EXPIRED else Code.ILLEGAL_STATE) as error:
        DOORS[event](kit, made)
    assert state.value in error.value.message
    assert error.value.details["state"] == state.value
    assert (meta.read_bytes(), kit.events()) == (before, events)
    assert sorted(path.name for path in kit.work.iterdir()) == tree


def test_the_whole_way_is_audited_and_indexed(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.land(sandbox, "echo new > f")
    assert (kit.work / "f").read_text() == "new\n"
    assert kit.events(made.changeset.id) == ["changeset.create", "changeset.approved", "changeset.applied"]
    lines = [json.loads(line) for line in (kit.state / "audit.log").read_text().splitlines()]
    assert all(line["vm_id"] == line["sandbox_id"] == sandbox.id for line in lines)
    assert len({line["id"] for line in lines}) == len(lines)


@pytest.mark.parametrize("state", [State.APPLIED, State.REJECTED, State.EXPIRED])
def test_final_changesets_keep_no_blobs(kit: Kit, sandbox: Sandbox, state: State) -> None:
    made = bring(kit, sandbox, state)
    assert not (kit.state / "changesets" / made.changeset.id / "blobs").exists()


def test_a_failed_one_keeps_its_blobs(kit: Kit, sandbox: Sandbox) -> None:
    made = bring(kit, sandbox, State.FAILED)
    assert list((kit.state / "changesets" / made.changeset.id / "blobs").iterdir())
    assert kit.events(made.changeset.id)[-1] == "changeset.failed"
    assert kit.engine.get_changeset(ADMIN, sandbox.id, made.changeset.id).changeset.error


def test_a_rejection_touches_nothing_and_carries_its_comment(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo new > f")
    rejected = kit.reject(made).changeset
    assert list(kit.work.iterdir()) == []
    assert rejected.decided_by == "ann"
