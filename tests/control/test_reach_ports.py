"""Who reaches the ports of a sandbox: anybody, or whoever holds its traffic token (spec: e2b, §2)."""

from __future__ import annotations

import pytest

from flux.control import reach
from flux.core.control import Located
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.signature import traffic_token
from tests.control.kit import World


def reached(world: World, sandbox: str, token: str | None = None) -> Located:
    return world.run(reach.reach_ports(world.control, sandbox, token))


def refusal(world: World, sandbox: str, token: str | None = None) -> Code:
    with pytest.raises(FluxError) as refused:
        reached(world, sandbox, token)
    return refused.value.code


def traffic(world: World, sandbox: str) -> str:
    token = world.row(sandbox).token
    assert token is not None
    return traffic_token(token)


def test_public_ports_take_no_token(world: World) -> None:
    sandbox = world.create().sandbox.id
    assert reached(world, sandbox).generation == 1
    assert reached(world, sandbox, "whatever").generation == 1
    assert refusal(world, "sbnone") is Code.NOT_FOUND


def test_others_take_the_traffic_token_and_no_other(world: World) -> None:
    sandbox, other = (world.create(public_ports=False).sandbox.id for _ in range(2))
    assert refusal(world, sandbox) is Code.DENIED
    assert refusal(world, sandbox, "") is Code.DENIED
    for wrong in ("x", "ü\udcff", world.row(sandbox).token, traffic(world, other), traffic(world, sandbox)[:-1]):
        assert refusal(world, sandbox, wrong) is Code.UNAUTHENTICATED, wrong
    assert reached(world, sandbox, traffic(world, sandbox)).sandbox_id == sandbox


def test_ports_over_a_user_s_own_directory_are_never_public(world: World) -> None:
    sandbox = world.create(workspace="/somewhere").sandbox.id
    assert refusal(world, sandbox) is Code.DENIED
    assert reached(world, sandbox, traffic(world, sandbox)).sandbox_id == sandbox


def test_only_who_may_use_ports_wakes_a_sandbox(world: World) -> None:
    still = world.create().sandbox.id
    lively = world.create(auto_resume=True, public_ports=False).sandbox.id
    for sandbox in (still, lively):
        world.pause(sandbox)
    assert refusal(world, still) is Code.NOT_FOUND
    assert refusal(world, lively) is Code.DENIED
    assert refusal(world, lively, "wrong") is Code.UNAUTHENTICATED
    assert world.row(lively).state is ControlState.PAUSED
    assert reached(world, lively, traffic(world, lively)).generation == 2


def test_forks_are_as_public_as_their_source(world: World) -> None:
    source = world.create(public_ports=False)
    (made,) = world.fork(source.sandbox.id, 1)
    assert refusal(world, made.sandbox.id, traffic(world, source.sandbox.id)) is Code.UNAUTHENTICATED
