"""The cases in which the daemon dies or its clock is wrong; each test has a daemon of its own, and its row's number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2b import SandboxState
from faulty import Beside
from flavours import Sdk, eventually
from test_rows import PATH, goes_on, is_killed, kept, made

from conftest import point

UPLOAD = ["upload.taken", "upload.intent", "upload.part", "upload.manifest", "upload.confirmed", "upload.committed"]


def quick(points: list[str], *chosen: str) -> list[Any]:
    """Mark all but the chosen points as slow."""
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.slow) for name in points]


@pytest.fixture
async def alone(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Beside]:
    """A Flux of the test's own."""
    started = Beside()
    point(monkeypatch, started.url, started.key)
    yield started
    await started.clear()
    await started.restart()
    started.stop()


@pytest.mark.parametrize("reached", quick(UPLOAD, "upload.part"))
async def test_row_5_the_uploader_is_killed(alone: Beside, sdk: Sdk, reached: str) -> None:
    await alone.arm(faults=[f"{reached} * 1 kill"])
    box = await made(sdk)
    try:
        await box.pause()
    except Exception as lost:  # the answer may be lost with the daemon
        assert "paused" not in str(lost)
    assert await alone.died() == -9
    await alone.replace(faults=["upload.taken * 1 hold"])
    await alone.restart()
    if reached != "upload.committed":
        await alone.passes(point="upload.taken", more_than=1 if reached == "upload.taken" else 0)
        await alone.is_not_evicted(sandbox=box.sandbox_id)
    await alone.clear()
    await alone.durable(sandbox=box.sandbox_id)
    assert await alone.published() == await alone.artifacts(sandbox=box.sandbox_id)
    await alone.evict(sandbox=box.sandbox_id)
    await goes_on(sdk, box)
    await is_killed(alone, box)


@pytest.mark.parametrize("reached", quick(["suspend.quiesced", "layer.publish", "layer.write"], "suspend.quiesced"))
async def test_row_15_the_node_dies_in_a_capture(alone: Beside, sdk: Sdk, reached: str) -> None:
    box = await made(sdk)
    await alone.arm(faults=[f"{reached} {box.sandbox_id} 1 kill"])
    with pytest.raises(Exception, match=r"."):
        await box.pause()
    assert await alone.died() == -9
    await alone.clear()
    await alone.restart()

    async def at_rest() -> bool:
        return (await box.get_info()).state in (SandboxState.PAUSED, SandboxState.RUNNING)

    await eventually(at_rest, "it is at rest")
    await goes_on(sdk, box)
    await is_killed(alone, box)


async def test_row_14_two_generations_in_a_moment_and_the_clock_an_hour_back(alone: Beside, sdk: Sdk) -> None:
    box = await kept(sdk)
    await alone.set_clock(seconds=-3600)
    await goes_on(sdk, box)
    assert await box.pause() is True
    await goes_on(sdk, box)
    assert (await alone.state_of(sandbox=box.sandbox_id))["generation"] == 3
    assert await box.pause() is True
    await alone.kill()
    await alone.set_clock(seconds=-7200)
    await alone.restart()
    await goes_on(sdk, box)
    assert (await alone.state_of(sandbox=box.sandbox_id))["generation"] == 4
    await alone.set_clock(seconds=0)
    found = await alone.artifacts(sandbox=box.sandbox_id)
    assert len(found) == len(set(found))
    await is_killed(alone, box)


async def test_the_daemon_dies_and_the_sdk_goes_on(alone: Beside, sdk: Sdk) -> None:
    box = await made(sdk)
    assert await box.pause() is True
    await alone.kill()
    await alone.restart()
    assert (await box.get_info()).state is SandboxState.PAUSED
    await box.connect(timeout=600)
    assert await box.files.read(PATH) == "before\n"
    await alone.kill()
    await alone.restart()
    await goes_on(sdk, box)
    await is_killed(alone, box)
