"""Sandboxes that start from snapshots, and lists that are filtered (spec: generations, G27; spec: e2b, §3)."""

from __future__ import annotations

from typing import Any

import pytest

from flux.control import artifacts, views
from flux.core.access import Actor, Role
from flux.core.control import SandboxFilter
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.failpoints import Point
from flux.store.registry import artifacts as artifact_rows
from tests.control.kit import ADMIN, ANN, BOB, World


def refused(world: World, actor: Actor = ADMIN, **fields: Any) -> FluxError:
    with pytest.raises(FluxError) as found:
        world.create(actor, **fields)
    return found.value


def test_it_starts_from_what_was_saved_also_when_the_source_is_gone(world: World) -> None:
    source = world.create(ANN, metadata={"of": "source"}, environment={"A": "1", "B": "2"}).sandbox.id
    world.machine.write(source, "file", "then")
    taken = world.snapshot(source, "s").artifact
    world.machine.write(source, "file", "later")
    world.kill(source)
    for reference in (taken.id, "s"):
        made = world.create(
            ANN, snapshot=reference, metadata={"m": "1"}, environment={"B": "3"}, ttl_seconds=60, on_timeout="pause"
        )
        assert world.machine.files(made.sandbox.id) == {"file": "then"}
        record = made.sandbox
        assert (record.snapshot, record.owner, record.metadata) == (taken.id, "kyann", {"m": "1"})
        assert record.environment == {"A": "1", "B": "3"}
        assert (record.ttl_seconds, record.on_timeout) == (60, "pause")
        assert made.artifact is not None and made.artifact.id == taken.id
        line = next(line for line in reversed(world.lines) if line.event == "sandbox.create")
        assert line.details["snapshot"] == taken.id


def test_it_has_a_life_of_its_own(world: World) -> None:
    source = world.create().sandbox.id
    world.machine.write(source, "file", "then")
    world.snapshot(source, "s")
    made = world.create(snapshot="s").sandbox.id
    world.machine.write(made, "file", "own")
    world.pause(made)
    world.connect(made)
    assert world.machine.files(made) == {"file": "own"}
    assert world.machine.files(source) == {"file": "then"}


def test_only_its_owner_starts_from_a_snapshot(world: World) -> None:
    source = world.create(ANN).sandbox.id
    taken = world.snapshot(source, "s").artifact
    for reference in (taken.id, "s", "none"):
        assert refused(world, BOB, snapshot=reference).code is Code.NOT_FOUND
    assert world.create(ANN, snapshot=taken.id).sandbox.owner == "kyann"


def test_a_name_means_the_callers_own_snapshot(world: World) -> None:
    anns = world.snapshot(world.create(ANN).sandbox.id, "s").artifact
    bobs = world.snapshot(world.create(BOB).sandbox.id, "s").artifact
    assert world.create(ANN, snapshot="s").sandbox.snapshot == anns.id
    assert world.create(BOB, snapshot="s").sandbox.snapshot == bobs.id
    assert artifacts.get(world.control, ANN, "s").id == anns.id


def test_what_a_pause_made_is_no_snapshot(world: World) -> None:
    source = world.create().sandbox.id
    paused = world.pause(source)
    assert paused.artifact is not None
    assert refused(world, snapshot=paused.artifact.id).code is Code.NOT_FOUND


def test_a_snapshot_that_is_deleted_meanwhile_starts_nothing(world: World) -> None:
    taken = world.snapshot(world.create().sandbox.id, "s").artifact
    built = world.control.build

    def build_late(*arguments: object) -> object:
        made = built(*arguments)  # type: ignore[arg-type]  # whatever it was given
        world.at[Point.WAKE_RECORDED] = pytest.fail  # nothing is recorded
        return made

    placed = world.control.placement.candidates

    def placed_late(*arguments: object) -> object:
        artifacts.delete(world.control, ADMIN, taken.id)
        return placed(*arguments)  # type: ignore[arg-type]  # the same

    world.control.build = build_late  # type: ignore[assignment]  # in its place for a test
    world.control.placement.candidates = placed_late  # type: ignore[method-assign, assignment]  # so too
    assert refused(world, snapshot=taken.id).code is Code.NOT_FOUND
    assert len(views.list_sandboxes(world.control, ADMIN, 10, None, SandboxFilter()).items) == 1


def test_a_snapshot_in_use_is_needed_until_it_is_not(world: World) -> None:
    source = world.create().sandbox.id
    taken = world.snapshot(source, "s").artifact
    made = world.create(snapshot="s").sandbox.id
    world.kill(source)
    artifacts.forget(world.control, ADMIN, "s")
    assert artifacts.needed(world.control) == {taken.id}
    assert refused(world, snapshot=taken.id).code is Code.NOT_FOUND
    with pytest.raises(FluxError) as again:
        artifacts.forget(world.control, ADMIN, taken.id)
    assert again.value.code is Code.NOT_FOUND
    world.kill(made)
    assert artifacts.needed(world.control) == set()


def test_a_paused_sandbox_keeps_what_it_rests_on_when_that_is_forgotten_as_a_snapshot(world: World) -> None:
    source = world.create().sandbox.id
    world.machine.write(source, "file", "kept")
    world.pause(source)
    taken = world.snapshot(source, "s").artifact
    artifacts.forget(world.control, ADMIN, "s")
    assert artifacts.needed(world.control) == {taken.id}
    world.connect(source)
    assert world.machine.files(source) == {"file": "kept"}


def test_a_snapshot_older_than_records_needs_its_sandbox(world: World) -> None:
    source = world.create(environment={"A": "1"}).sandbox.id
    taken = world.snapshot(source, "s").artifact
    with world.registry.transaction() as tx:
        tx.execute("UPDATE artifacts SET record = NULL")
        held = artifact_rows.lock(tx, taken.id)
        assert held is not None and held.record is None
    assert world.create(snapshot="s").sandbox.environment == {"A": "1"}
    world.kill(source)
    assert refused(world, snapshot="s").code is Code.NOT_APPLICABLE


def test_forks_may_have_a_time_out_of_their_own(world: World) -> None:
    source = world.create(ttl_seconds=1000).sandbox.id
    assert [made.sandbox.ttl_seconds for made in world.fork(source, 2)] == [1000, 1000]
    [short] = world.fork(source, ttl_seconds=30)
    assert short.sandbox.ttl_seconds == 30
    assert short.sandbox.expires_at == pytest.approx(world.clock.wall() + 30, abs=5)
    with pytest.raises(FluxError) as wrong:
        world.fork(source, ttl_seconds=0)
    assert wrong.value.code is Code.INVALID


# Lists


def listed(world: World, actor: Actor = ADMIN, limit: int = 100, **wanted: object) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        filters = SandboxFilter(**wanted)  # type: ignore[arg-type]  # what a test varies
        page = views.list_sandboxes(world.control, actor, limit, cursor, filters)
        assert len(page.items) <= limit
        found += [status.sandbox.id for status in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


def test_lists_are_filtered(world: World) -> None:
    one = world.create(metadata={"a": "1", "b": "2"}).sandbox.id
    two = world.create(metadata={"a": "1"}).sandbox.id
    moment = world.clock.wall()
    world.clock.advance(10)
    three = world.create(metadata={"a": "2"}).sandbox.id
    world.pause(two)
    taken = world.snapshot(one).artifact
    four = world.create(snapshot=taken.id).sandbox.id
    assert listed(world) == [four, three, two, one]
    assert listed(world, oldest_first=True) == [one, two, three, four]
    assert listed(world, metadata={"a": "1"}) == [two, one]
    assert listed(world, metadata={"a": "1", "b": "2"}) == [one]
    assert listed(world, metadata={"c": "1"}) == []
    assert listed(world, states=(ControlState.PAUSED,)) == [two]
    assert listed(world, states=()) == []
    assert listed(world, started_after=moment) == [four, three]
    assert listed(world, template=taken.id) == [four]
    assert listed(world, ANN) == []


@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_stay_right_with_filters_and_changes(world: World, oldest_first: bool) -> None:
    made = [world.create(metadata={"odd": str(number % 2)}).sandbox.id for number in range(9)]
    odd = made[1::2] if oldest_first else made[1::2][::-1]
    assert listed(world, limit=1, metadata={"odd": "1"}, oldest_first=oldest_first) == odd
    wanted = SandboxFilter(metadata={"odd": "1"}, oldest_first=oldest_first)
    first = views.list_sandboxes(world.control, ADMIN, 2, None, wanted)
    assert [status.sandbox.id for status in first.items] == odd[:2]
    world.kill(odd[1])  # the one that the cursor is of
    second = views.list_sandboxes(world.control, ADMIN, 2, first.next_cursor, wanted)
    assert ([status.sandbox.id for status in second.items], second.next_cursor) == (odd[2:], None)


def test_more_than_a_piece_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_PIECE", 2)
    made = [world.create(metadata={"n": str(number)}).sandbox.id for number in range(6)]
    assert listed(world, limit=1, metadata={"n": "0"}) == [made[0]]
    assert listed(world, limit=3) == made[::-1]


def test_those_that_are_being_made_are_left_out_on_request(world: World) -> None:
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(listed(world, lived=True))
        seen.append(listed(world))

    world.at[Point.WAKE_RECORDED] = look
    made = world.create().sandbox.id
    assert seen == [[], [made]]
    assert listed(world, lived=True) == [made]


def test_a_reviewer_sees_all_and_holds_no_token() -> None:
    from flux.core.access import may_hold_token

    def actor(role: Role) -> Actor:
        return Actor(name="x", role=role, key_id="ky")

    assert {role for role in Role if may_hold_token(actor(role), bound=False)} == {Role.ADMIN, Role.AGENT, Role.USER}
    assert {role for role in Role if may_hold_token(actor(role), bound=True)} == {Role.ADMIN, Role.USER}
