"""The cases of suspend, restore and delete, as far as the public SDK can express them; each test has its row's number.

| row | here | where it is tested if the SDK cannot say it |
|---|---|---|
| 1 | deleted while a connect is under way | |
| 2 | writes fail after the execution started | |
| 3 | | `tests/cases/test_lifecycle.py`: a late commit is between node and control plane |
| 4 | | `tests/cases/test_lifecycle.py`: the SDK's token is the same for every generation |
| 5 | the uploader is killed | |
| 6 | restored from the remote copy alone; a flipped byte | |
| 7 | | `tests/cases/test_lifecycle.py`: a late clean-up is between node and control plane |
| 8 | `test_pause.py`: two hundred times | |
| 9 | deleted with a corrupt artifact | |
| 10 | collecting garbage during a restore, and below a fork | |
| 11 | `test_pause.py`: twenty cycles | |
| 12 | ten connects after a restore that failed | |
| 13 | `test_pause.py`: acknowledged lines at a time-out | |
| 14 | two generations in a moment, the clock an hour back | |
| 15 | a capture fails, or the node dies in it | |
| 16 | `test_commands.py`: 64 MiB through a command | |
| 17 | `test_life.py`: a short connect | |
| 18 | `test_life.py`: one idempotency key | |
| 19 | a failed start is an error, never an empty sandbox | |
| 20 | pause, snapshot and kill at the same time | |
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2b import SandboxState
from e2b.exceptions import (
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
)
from faulty import Beside
from flavours import Sdk

from conftest import point

PATH = "/home/user/file"
TYPED = (SandboxException, ServiceBusyException)


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    """A Flux with failpoints."""
    made = Beside()
    yield made
    made.stop()


@pytest.fixture
async def flux(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Beside]:
    """The same, with the SDK's environment set to it; nothing armed afterwards."""
    point(monkeypatch, beside.url, beside.key)
    yield beside
    await beside.clear()


async def made(sdk: Sdk) -> Any:
    """Create a sandbox and write the file."""
    box = await sdk.create(timeout=600)
    await box.files.write(PATH, "before\n")
    return box


async def kept(sdk: Sdk) -> Any:
    """Create a sandbox, write the file, pause it."""
    box = await made(sdk)
    assert await box.pause() is True
    return box


async def evicted(flux: Beside, sdk: Sdk) -> Any:
    """Return a paused sandbox that only the object store has."""
    box = await kept(sdk)
    await flux.durable(sandbox=box.sandbox_id)
    await flux.evict(sandbox=box.sandbox_id)
    return box


async def goes_on(sdk: Sdk, box: Any) -> None:
    """Connect; it has the file and works."""
    woken = await sdk.connect(box.sandbox_id, timeout=600)
    assert woken.sandbox_id == box.sandbox_id
    assert await woken.files.read(PATH) == "before\n"
    assert (await woken.commands.run(f"cat {PATH}")).stdout == "before\n"


async def is_killed(flux: Beside, box: Any) -> None:
    """Kill a sandbox and see that nothing is left of it."""
    assert await box.kill() is True
    await flux.is_gone(sandbox=box.sandbox_id)


@pytest.mark.parametrize("reached", ["activate.prepare", "activate.prepared", "activate.started", "activate.committed"])
async def test_row_1_deleted_while_a_connect_is_under_way(flux: Beside, sdk: Sdk, reached: str) -> None:
    box = await kept(sdk)
    before = await flux.reached(point=reached)
    await flux.arm(faults=[f"{reached} {box.sandbox_id} 1 hold"])
    waking = asyncio.create_task(sdk.connect(box.sandbox_id))
    await flux.passes(point=reached, more_than=before)
    killing = asyncio.create_task(box.kill())
    await flux.recorded_as(sandbox=box.sandbox_id, states=["killing", "killed"])
    await flux.clear()
    assert await killing is True
    with pytest.raises(SandboxNotFoundException):
        await waking
    await flux.is_gone(sandbox=box.sandbox_id)
    assert await box.is_running() is False


@pytest.mark.parametrize("failing", [1, 2])
async def test_row_2_writes_fail_after_the_execution_started(flux: Beside, sdk: Sdk, failing: int) -> None:
    box = await kept(sdk)
    before = await flux.reached(point="activate.started")
    await flux.arm(faults=[f"activate.started {box.sandbox_id} 1 hold"])
    waking = asyncio.create_task(sdk.connect(box.sandbox_id, timeout=600))
    await flux.passes(point="activate.started", more_than=before)
    await flux.replace(faults=[f"database.commit {box.sandbox_id} {failing} error:unavailable"])
    assert (await waking).sandbox_id == box.sandbox_id
    await flux.clear()
    await goes_on(sdk, box)
    await flux.one_init(sandbox=box.sandbox_id)
    assert len(await flux.artifacts(sandbox=box.sandbox_id)) == 1
    await is_killed(flux, box)


@pytest.mark.parametrize("damage", ["flipped", "missing", "garbage"])
async def test_row_9_deleted_with_a_corrupt_artifact(flux: Beside, sdk: Sdk, damage: str) -> None:
    box = await kept(sdk)
    await flux.spoil_manifest(sandbox=box.sandbox_id, damage=damage)
    await is_killed(flux, box)


async def test_row_6_restored_from_the_remote_copy_alone(flux: Beside, sdk: Sdk) -> None:
    box = await evicted(flux, sdk)
    await flux.nothing_left(sandbox=box.sandbox_id)
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def test_row_6_a_flipped_byte_is_an_error_and_the_original_stays(flux: Beside, sdk: Sdk) -> None:
    await flux.remember()
    box = await evicted(flux, sdk)
    before = await flux.state_of(sandbox=box.sandbox_id)
    await flux.flip_pack()
    with pytest.raises(SandboxException) as refused:
        await sdk.connect(box.sandbox_id)
    assert refused.value.status_code == 409
    assert (await box.get_info()).state is SandboxState.PAUSED
    assert (await flux.state_of(sandbox=box.sandbox_id))["artifact_id"] == before["artifact_id"]
    await flux.mend()
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def test_row_10_collecting_leaves_what_a_successor_restores_from(flux: Beside, sdk: Sdk) -> None:
    box = await evicted(flux, sdk)
    artifact = (await flux.state_of(sandbox=box.sandbox_id))["artifact_id"]
    before = await flux.reached(point="activate.prepare")
    await flux.arm(faults=[f"activate.prepare {box.sandbox_id} 1 hold"])
    waking = asyncio.create_task(sdk.connect(box.sandbox_id, timeout=600))
    await flux.passes(point="activate.prepare", more_than=before)
    for _ in range(3):
        await flux.collect()
    assert artifact in await flux.published()
    await flux.clear()
    await waking
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def test_row_10_collecting_leaves_what_a_fork_refers_to(flux: Beside, sdk: Sdk) -> None:
    box = await made(sdk)
    [fork] = await box.fork(count=1, timeout=600)
    await fork.files.write("own", "own\n")
    assert await fork.pause() is True
    await flux.durable(sandbox=fork.sandbox_id)
    assert await box.kill() is True
    await flux.evict(sandbox=fork.sandbox_id)
    for _ in range(3):
        await flux.collect()
    await goes_on(sdk, fork)
    assert await fork.files.read("own") == "own\n"
    await is_killed(flux, fork)


async def test_row_12_ten_connects_at_once_after_a_restore_that_failed(flux: Beside, sdk: Sdk) -> None:
    box = await kept(sdk)
    await flux.arm(faults=[f"activate.prepare {box.sandbox_id} 1 error"])
    woken = await asyncio.gather(*(sdk.connect(box.sandbox_id, timeout=600) for _ in range(10)))
    assert {other.sandbox_id for other in woken} == {box.sandbox_id}
    assert (await flux.state_of(sandbox=box.sandbox_id))["generation"] == 3
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def test_row_12_ten_connects_in_turn_and_most_restores_fail(flux: Beside, sdk: Sdk) -> None:
    box = await kept(sdk)
    await flux.arm(faults=[f"activate.prepare {box.sandbox_id} 9 error:exhausted"])
    outcomes: list[bool] = []
    for _ in range(10):
        try:
            await sdk.connect(box.sandbox_id, timeout=600)
            outcomes.append(True)
        except ServiceBusyException as busy:
            assert "503" in str(busy)
            assert (await box.get_info()).state is SandboxState.PAUSED
            outcomes.append(False)
    assert outcomes[0] is False and outcomes[-4:] == [True] * 4
    assert outcomes == sorted(outcomes)
    await goes_on(sdk, box)
    await is_killed(flux, box)


@pytest.mark.parametrize("reached", ["activate.prepare", "activate.prepared", "activate.started"])
async def test_row_19_a_failed_start_is_an_error_and_never_an_empty_sandbox(
    flux: Beside, sdk: Sdk, reached: str
) -> None:
    box = await kept(sdk)
    before = await flux.state_of(sandbox=box.sandbox_id)
    await flux.arm(faults=[f"{reached} {box.sandbox_id} 99 error:exhausted"])
    with pytest.raises(ServiceBusyException):
        await sdk.connect(box.sandbox_id)
    after = await flux.state_of(sandbox=box.sandbox_id)
    assert (after["state"], after["artifact_id"]) == ("paused", before["artifact_id"])
    assert await box.is_running() is False
    with pytest.raises(SandboxNotRunningException):
        await box.files.read(PATH)
    await flux.clear()
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def test_row_19_a_creation_that_cannot_start_leaves_nothing(flux: Beside, sdk: Sdk) -> None:
    before = {info.sandbox_id for info in await sdk.all_of(sdk.listed())}
    await flux.arm(faults=["activate.prepare * 99 error:exhausted"])
    with pytest.raises(TYPED):
        await sdk.create(timeout=600)
    await flux.clear()
    assert {info.sandbox_id for info in await sdk.all_of(sdk.listed())} == before


@pytest.mark.parametrize("reached", ["suspend.begun", "suspend.quiesced", "layer.publish", "suspend.captured"])
async def test_row_15_a_capture_fails_before_it_is_named(flux: Beside, sdk: Sdk, reached: str) -> None:
    box = await made(sdk)
    sleeper = await box.commands.run("sleep 1000", background=True)
    await flux.arm(faults=[f"{reached} {box.sandbox_id} 1 error"])
    with pytest.raises(TYPED):
        await box.pause()
    await flux.clear()
    assert (await box.get_info()).state is SandboxState.RUNNING
    assert sleeper.pid in [process.pid for process in await box.commands.list()]
    assert await flux.artifacts(sandbox=box.sandbox_id) == []
    assert await box.pause() is True
    await goes_on(sdk, box)
    await is_killed(flux, box)


async def outcome(call: Any, allowed: tuple[type[Exception], ...]) -> Any:
    """Return what a call gives, or the exception that it may raise."""
    try:
        return await call
    except allowed as error:
        return error


@pytest.mark.parametrize("order", list(itertools.permutations(["pause", "snapshot", "kill"])), ids="-".join)
async def test_row_20_pause_snapshot_and_kill_at_the_same_time(flux: Beside, sdk: Sdk, order: tuple[str, ...]) -> None:
    box = await made(sdk)
    verbs = {"pause": box.pause, "snapshot": box.create_snapshot, "kill": box.kill}
    calls = [asyncio.create_task(outcome(verbs[verb](), TYPED)) for verb in order]
    found = dict(zip(order, await asyncio.gather(*calls), strict=True))
    assert found["kill"] is True
    await flux.is_gone(sandbox=box.sandbox_id)
    with pytest.raises(SandboxNotFoundException):
        await box.get_info()
    if not isinstance(found["snapshot"], Exception):
        started = await sdk.create(found["snapshot"].snapshot_id, timeout=600)
        assert await started.files.read(PATH) == "before\n"
        await is_killed(flux, started)


@pytest.mark.parametrize("first", ["pause", "snapshot"])
async def test_row_20_pause_and_snapshot_at_the_same_time(flux: Beside, sdk: Sdk, first: str) -> None:
    box = await made(sdk)
    verbs = {"pause": box.pause, "snapshot": box.create_snapshot}
    order = sorted(verbs, key=lambda verb: verb != first)
    calls = [asyncio.create_task(outcome(verbs[verb](), TYPED)) for verb in order]
    found = dict(zip(order, await asyncio.gather(*calls), strict=True))
    assert found["pause"] is True
    await goes_on(sdk, box)
    await is_killed(flux, box)
