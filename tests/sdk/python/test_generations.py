"""A first activation fails, and everything comes too late, while the SDK only sees a connect (§11 of the design).

Create, write a file, pause, connect: generation 2 fails its prepare, generation 3 succeeds in the same call. What is
late goes straight to the node, over gRPC, from the process beside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faulty import Beside
from flavours import Sdk

from conftest import point

PATH = "/home/user/kept"
CONTENT = "what was there before\n"

EVICTED = pytest.mark.parametrize("evicted", [False, True], ids=["before-eviction", "after-eviction"])


@pytest.fixture(scope="module", params=["all", "split"])
def beside(request: pytest.FixtureRequest) -> Iterator[Beside]:
    """A Flux with failpoints: one daemon with every role, or a control plane and a node."""
    made = Beside(split=request.param == "split")
    yield made
    made.stop()


class Story:
    """One sandbox that the SDK made, wrote to and paused."""

    def __init__(self, beside: Beside, sdk: Sdk, box: Any) -> None:
        self.beside, self.sdk, self.box = beside, sdk, box
        self.id: str = box.sandbox_id

    @asynccontextmanager
    async def between(self, *, evicted: bool = False) -> AsyncIterator[asyncio.Task[Any]]:
        """Connect, and stand between the rollback of generation 2 and the mint of generation 3."""
        before = await self.beside.reached(point="wake.answered", control=True)
        await self.beside.fail_second(sandbox=self.id, hold=True)
        woken = asyncio.create_task(self.sdk.connect(self.id, timeout=600))
        try:
            await self.beside.second_failed(sandbox=self.id, more_than=before)
            if evicted:
                await self.beside.evict_first(sandbox=self.id)
            yield woken
            assert not woken.done()
        finally:
            await self.beside.clear()
            await asyncio.wait([woken])

    async def ends_well(self, woken: Any, generation: int = 3) -> None:
        """Assert that the SDK has the sandbox with its file, and what the table says of every scenario."""
        assert woken.sandbox_id == self.id
        await self.beside.ends_well(sandbox=self.id, generation=generation)
        assert await woken.is_running() is True
        assert await woken.files.read(PATH) == CONTENT
        assert (await woken.commands.run(f"cat {PATH}; echo more >>{PATH}")).stdout == CONTENT
        assert await self.box.files.read(PATH) == CONTENT + "more\n"


@pytest.fixture
async def story(beside: Beside, sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Story]:
    """A paused sandbox whose original artifact is in the object store."""
    point(monkeypatch, beside.url, beside.key)
    await beside.remember()
    box = await sdk.create(timeout=600)
    await box.files.write(PATH, CONTENT)
    assert await box.pause() is True
    await beside.tell(sandbox=box.sandbox_id)
    yield Story(beside, sdk, box)
    await beside.clear()
    assert await box.kill() is True


@EVICTED
async def test_1_the_same_attempt_is_retried(story: Story, evicted: bool) -> None:
    async with story.between(evicted=evicted) as woken:
        await story.beside.same_attempt(sandbox=story.id, evicted=evicted)
        await story.beside.tear_down(sandbox=story.id, evicted=evicted)
    await story.ends_well(await woken)
    await story.beside.late_at_the_end(sandbox=story.id)


@EVICTED
async def test_2_a_second_wake_is_sent_during_the_first(story: Story, evicted: bool) -> None:
    async with story.between(evicted=evicted) as woken:
        second = asyncio.create_task(story.sdk.connect(story.id, timeout=600))
        await story.beside.same_attempt(sandbox=story.id, evicted=evicted)
        await story.beside.tear_down(sandbox=story.id, evicted=evicted)
        assert not second.done()
    assert (await second).sandbox_id == story.id
    await story.ends_well(await woken)


@EVICTED
async def test_3_a_new_attempt_for_the_failed_generation(story: Story, evicted: bool) -> None:
    async with story.between(evicted=evicted) as woken:
        await story.beside.new_attempt(sandbox=story.id, evicted=evicted)
        await story.beside.tear_down(sandbox=story.id, evicted=evicted)
    await story.ends_well(await woken)


@EVICTED
async def test_4_the_pod_is_deleted_and_nothing_is_retried(story: Story, evicted: bool) -> None:
    async with story.between(evicted=evicted) as woken:
        await story.beside.tear_down(sandbox=story.id, evicted=evicted)
    await story.ends_well(await woken)


@EVICTED
async def test_5_the_retry_comes_after_generation_3_was_claimed(story: Story, evicted: bool) -> None:
    async with story.between(evicted=evicted) as woken:
        await story.beside.third_prepares(sandbox=story.id)
        await story.beside.late_cold_starts(sandbox=story.id, evicted=evicted)
    await story.ends_well(await woken)


async def test_6_a_normal_suspend_and_restore(story: Story) -> None:
    await story.ends_well(await story.sdk.connect(story.id, timeout=600), 2)


async def test_the_wake_succeeds_in_the_same_call_in_about_the_time_of_a_normal_wake(story: Story) -> None:
    await story.beside.fail_second(sandbox=story.id, hold=False)
    started = time.monotonic()
    woken = await story.sdk.connect(story.id, timeout=600)
    assert time.monotonic() - started < 10
    await story.ends_well(woken)


async def test_use_of_the_files_wakes_through_generation_3_too(
    beside: Beside, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(monkeypatch, beside.url, beside.key)
    await beside.remember()
    box = await sdk.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await box.files.write(PATH, CONTENT)
    assert await box.pause() is True
    await beside.tell(sandbox=box.sandbox_id)
    await beside.fail_second(sandbox=box.sandbox_id, hold=False)
    assert await box.files.read(PATH) == CONTENT
    await beside.ends_well(sandbox=box.sandbox_id, generation=3)
    await beside.clear()
    assert await box.kill() is True
