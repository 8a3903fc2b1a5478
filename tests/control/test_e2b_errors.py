"""What real failures of the control plane are to E2B's SDKs, and whether they may repeat them (spec: e2b, §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flux.api.e2b.errors import Doing, Told, Unsupported, body, told
from flux.api.rest.errors import STATUSES
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Activate, Suspend
from flux.failpoints import Point
from tests.control.kit import World, down


def failure(action: Callable[[], object]) -> FluxError:
    with pytest.raises(FluxError) as found:
        action()
    return found.value


def failing(code: Code, reason: str, *kinds: type) -> Callable[[Any, Callable[[], Any]], Any]:
    """Return a carrier to a node that undoes what it is asked and says why."""

    def carry(request: Any, ask: Callable[[], Any]) -> Any:
        store = request.node_store_id
        if not isinstance(request, kinds):
            return ask()
        details = {"reason": reason, "node_store_id": store, "rolled_back": True, "cause": code.value}
        raise FluxError(code, f"cannot do it: {reason}", details)

    return carry


def test_a_wake_whose_every_try_failed_and_was_undone(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.pause(sandbox)
    world.carriers["n1"] = failing(Code.INTERNAL, "StartFailed", Activate)
    error = failure(lambda: world.connect(sandbox))
    assert told(error, "wake") == Told(503, "restore_failed", retry=False)
    assert world.row(sandbox).state is ControlState.PAUSED
    world.carriers["n1"] = failing(Code.EXHAUSTED, "disk", Activate)
    assert told(failure(lambda: world.connect(sandbox)), "wake") == Told(503, "restore_failed")
    del world.carriers["n1"]
    assert world.connect(sandbox).woke_from == "artifact"


def test_a_corrupt_artifact(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.pause(sandbox)
    world.carriers["n1"] = failing(Code.INTERNAL, "DataLoss", Activate)
    assert told(failure(lambda: world.connect(sandbox)), "wake") == Told(409, "artifact_corrupt")


def test_an_outcome_that_nobody_knows_and_the_connect_that_joins(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.pause(sandbox)
    world.carriers["n1"] = down
    error = failure(lambda: world.connect(sandbox))
    assert told(error, "wake") == Told(504, "outcome_unknown")
    del world.carriers["n1"]
    assert world.connect(sandbox).sandbox.id == sandbox


def test_a_kill_during_a_wake(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.pause(sandbox)
    world.at[Point.WAKE_ANSWERED] = lambda: world.kill(sandbox)
    assert told(failure(lambda: world.connect(sandbox)), "wake") == Told(404)


def test_a_pause_that_is_refused_or_not_known_is_never_409(world: World) -> None:
    sandbox = world.create().sandbox.id
    world.carriers["n1"] = failing(Code.UNAVAILABLE, "CaptureFailed", Suspend)
    error = failure(lambda: world.pause(sandbox))
    assert (world.row(sandbox).state, told(error, "pause").status) == (ControlState.RUNNING, 503)
    world.carriers["n1"] = down
    assert told(failure(lambda: world.pause(sandbox)), "pause") == Told(504, "outcome_unknown")
    assert told(failure(lambda: world.pause(sandbox)), "pause") == Told(503, "sandbox_pause_refused")
    for code in (Code.CONFLICT, Code.FENCED, Code.ILLEGAL_STATE, Code.EXPIRED, Code.ALREADY_EXISTS):
        assert told(FluxError(code, "cannot"), "pause") == Told(503, "sandbox_pause_refused")


def test_creations_that_fail(world: World) -> None:
    for code, answer in (
        (Code.INTERNAL, Told(500, "sandbox_create_failed")),
        (Code.EXHAUSTED, Told(503, "sandbox_capacity_unavailable", retry=True)),
        (Code.INVALID, Told(400, "sandbox_create_refused")),
    ):
        world.carriers["n1"] = failing(code, "StartFailed", Activate)
        assert told(failure(world.create), "create") == answer
    world.carriers["n1"] = down
    assert told(failure(world.create), "create") == Told(503, "sandbox_placement_timeout", retry=True)


def test_a_second_request_with_the_key_of_one_under_way(world: World) -> None:
    seen: list[FluxError] = []

    def repeat() -> None:
        world.control.flights.take(only(world))
        seen.append(failure(lambda: world.create(key="k")))
        world.control.flights.release(only(world))

    world.at[Point.WAKE_RECORDED] = repeat
    made = world.create(key="k")
    assert [told(error, "create") for error in seen] == [Told(409, "idempotency_in_progress", retry=True)]
    assert world.create(key="k").sandbox.id == made.sandbox.id
    assert told(failure(lambda: world.create(key="k", ttl_seconds=5)), "create") == Told(
        409, "idempotency_request_mismatch"
    )


def only(world: World) -> str:
    """Return the id of the only sandbox."""
    with world.registry.reading() as tx:
        [(sandbox,)] = tx.every("SELECT id FROM sandboxes")
    return str(sandbox)


@pytest.mark.parametrize("doing", ["create", "wake", "pause", "other"])
def test_every_code_is_told_and_what_is_not_known_is_not_repeated(doing: Doing) -> None:
    for code in STATUSES:
        found = told(FluxError(code, "cannot"), doing)
        assert 400 <= found.status < 600
        assert not (found.retry and found.status not in (429, 503))
    assert told(FluxError(Code.UNKNOWN_OUTCOME, "cannot"), doing).status == 504
    assert told(FluxError(Code.EXHAUSTED, "cannot", {"rate": "x"}), doing) == Told(429, "rate_limited", retry=True)
    assert told(Unsupported("fly", "walk"), doing) == Told(501)


def test_messages_that_hold_anything_can_be_sent() -> None:
    shown = body(FluxError(Code.INVALID, "cannot \ud800 \x1b[31m " + "x" * 5000))
    assert shown["code"] == 400
    assert len(shown["message"]) <= 2000
    shown["message"].encode()
