"""Tokens, and how whoever holds one finds and wakes the sandbox (spec: e2b, §4, §5)."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from flux.control import reach
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.failpoints import Point
from flux.store.registry import artifacts, sandboxes
from flux.store.registry.database import MIGRATIONS, RegistryDatabase, SqliteRegistry
from flux.testing.clock import FakeClock
from tests.control.kit import World, down


def token_of(world: World, sandbox: str) -> str:
    token = world.row(sandbox).token
    assert token is not None
    return token


def refusal(world: World, sandbox: str, token: str | None = None, *, wake: bool = False) -> Code:
    with pytest.raises(FluxError) as refused:
        world.reach(sandbox, token, wake=wake)
    return refused.value.code


def test_a_token_is_made_with_the_sandbox_and_stays_the_same(world: World) -> None:
    made = world.create()
    token = token_of(world, made.sandbox.id)
    assert re.fullmatch("[0-9a-f]{48}", token)
    assert made.token == token
    world.pause(made.sandbox.id)
    assert world.connect(made.sandbox.id).token == token
    assert token_of(world, world.create().sandbox.id) != token


def test_forks_have_tokens_of_their_own(world: World) -> None:
    source = world.create()
    first, second = world.fork(source.sandbox.id, 2)
    assert len({source.token, first.token, second.token}) == 3


def test_a_running_sandbox_is_reached_by_its_token_alone(world: World) -> None:
    one, other = world.create().sandbox.id, world.create().sandbox.id
    found = world.reach(one, token_of(world, one))
    assert (found.sandbox_id, found.generation, found.node, found.local) == (one, 1, "n1", True)
    assert world.reach(one, None) == found
    for wrong in ("", "x", token_of(world, other), "ü\ud800", token_of(world, one)[:-1]):
        assert refusal(world, one, wrong) is Code.UNAUTHENTICATED, wrong


def test_a_name_reaches_nothing(world: World) -> None:
    world.create(name="box")
    assert refusal(world, "box") is Code.NOT_FOUND
    assert refusal(world, "sbnone") is Code.NOT_FOUND


def test_a_paused_sandbox_is_woken_by_use_only_if_it_may_be(world: World) -> None:
    still, lively = world.create().sandbox.id, world.create(auto_resume=True).sandbox.id
    for sandbox in (still, lively):
        world.pause(sandbox)
        assert refusal(world, sandbox, token_of(world, sandbox)) is Code.NOT_FOUND
    assert refusal(world, still, token_of(world, still), wake=True) is Code.NOT_FOUND
    assert refusal(world, lively, "wrong", wake=True) is Code.UNAUTHENTICATED
    assert world.row(lively).state is ControlState.PAUSED
    assert world.reach(lively, token_of(world, lively), wake=True).generation == 2
    line = world.lines[-1]
    assert (line.event, line.actor, line.sandbox_id) == ("sandbox.resume", f"token of {lively}", lively)
    assert line.details == {"generation": 2, "node": "n1", "reason": "use"}


def test_a_wake_under_way_is_joined_also_without_auto_resume(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.pause(sandbox)
    joined = []
    world.at[Point.WAKE_ANSWERED] = lambda: world.control.flights.release(sandbox)
    world.at[Point.WAKE_MINTED] = lambda: joined.append(world.reach(sandbox, token_of(world, sandbox), wake=True))
    world.connect(sandbox)
    assert [found.generation for found in joined] == [2]


def test_a_kill_wins_over_the_wake_that_use_began(world: World) -> None:
    sandbox = world.create(auto_resume=True).sandbox.id
    token = token_of(world, sandbox)
    world.pause(sandbox)
    world.at[Point.WAKE_ANSWERED] = lambda: world.kill(sandbox)
    assert refusal(world, sandbox, token, wake=True) is Code.NOT_FOUND
    assert not world.exists(sandbox)
    assert world.machine.generations_running(sandbox) == []


def test_a_wake_by_use_that_fails_leaves_the_sandbox_paused(world: World) -> None:
    sandbox = world.create(auto_resume=True).sandbox.id
    world.pause(sandbox)
    world.carriers["n1"] = down
    assert refusal(world, sandbox, wake=True) is Code.UNAVAILABLE
    del world.carriers["n1"]
    assert world.reach(sandbox, wake=True).sandbox_id == sandbox


def test_a_sandbox_whose_time_is_over_is_not_reached(world: World) -> None:
    sandbox = world.create(ttl_seconds=10).sandbox.id
    world.clock.advance(11)
    assert refusal(world, sandbox) is Code.NOT_FOUND


def test_tokens_are_those_of_the_living(world: World) -> None:
    one, other = world.create().sandbox.id, world.create().sandbox.id
    world.pause(other)
    assert reach.tokens(world.control) == [(one, token_of(world, one)), (other, token_of(world, other))]
    world.kill(one)
    assert reach.tokens(world.control) == [(other, token_of(world, other))]


def test_a_row_older_than_tokens_gets_one_when_it_is_needed(world: World) -> None:
    sandbox = world.create().sandbox.id
    with world.registry.transaction() as tx:
        held = sandboxes.lock(tx, sandbox)
        assert held is not None
        sandboxes.write(tx, held, token=None)
    [(_, token)] = reach.tokens(world.control)
    assert token == token_of(world, sandbox)
    assert world.reach(sandbox, token).sandbox_id == sandbox


GOLDEN = (Path(__file__).parent / "golden_0001.sql").read_text()
OLD = "sb0123456789abcdef"


def check_old(registry: RegistryDatabase) -> None:
    """Check that a sandbox of the first schema is as it was, and gets a token when it needs one."""
    with registry.reading() as tx:
        row = sandboxes.read(tx, OLD)
        assert row is not None
        assert (row.token, row.name, row.state, row.generation) == (None, "old", ControlState.PAUSED, 3)
        assert (row.record.snapshot, row.record.internet, row.record.auto_resume) == (None, False, False)
        assert row.record.environment == {"A": "1"}
        assert sandboxes.tokens(tx) == [(OLD, None)]
        held = artifacts.find(tx, "a1")
        assert held is not None
        assert (held.record, held.size) == (None, 10)
    with registry.transaction() as tx:
        locked = sandboxes.lock(tx, OLD)
        assert locked is not None
        sandboxes.write(tx, locked, token="t")
        assert sandboxes.tokens(tx) == [(OLD, "t")]


def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    place = tmp_path / "control.db"
    old = sqlite3.connect(place)
    old.executescript((MIGRATIONS / "0001_registry.sql").read_text() + GOLDEN + "PRAGMA user_version = 1;")
    old.close()
    registry = SqliteRegistry(str(place), FakeClock())
    try:
        check_old(registry)
    finally:
        registry.close()


def test_a_server_of_the_first_schema_is_brought_up_to_date(postgres_url: str, tmp_path: Path) -> None:
    from flux.store.registry.postgres import PostgresRegistry

    shutil.copy(MIGRATIONS / "0001_registry.sql", tmp_path)
    old = PostgresRegistry(postgres_url, FakeClock(), tmp_path)
    with old.transaction() as tx:
        for statement in GOLDEN.split(";\n"):
            if statement.strip():
                tx.execute(statement)
    old.close()
    registry = PostgresRegistry(postgres_url, FakeClock())
    try:
        check_old(registry)
    finally:
        registry.close()
