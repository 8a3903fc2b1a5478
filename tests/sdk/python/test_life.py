"""Create, look, list, extend, connect, kill: the life of a sandbox as the SDK sees it."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from daemons import Flux
from e2b import SandboxQuery, SandboxState
from e2b.exceptions import SandboxException, SandboxNotFoundException, SandboxNotRunningException
from flavours import Sdk, eventually

pytestmark = pytest.mark.everywhere


def left_of(info: Any) -> float:
    """Return how many seconds a sandbox still has."""
    seconds: float = (info.end_at - datetime.now(UTC)).total_seconds()
    return seconds


async def test_a_whole_life(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create("base", timeout=120, metadata={"who": "the test", "naïve": "yes=&no"}, envs={"A": "b c"})
    assert box.sandbox_id.isalnum() and box.sandbox_id.islower()
    assert await box.is_running() is True
    info = await box.get_info()
    assert (info.sandbox_id, info.state, info.template_id) == (box.sandbox_id, SandboxState.RUNNING, "base")
    assert info.metadata == {"who": "the test", "naïve": "yes=&no"}
    assert (info.envd_version, info.sandbox_domain) == ("0.6.13", None)
    assert info.cpu_count >= 1 and info.memory_mb >= 1
    assert abs((info.end_at - info.started_at) - timedelta(seconds=120)) < timedelta(seconds=2)
    assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}
    assert (await box.commands.run('echo "$A"')).stdout == "b c\n"
    assert await box.kill() is True
    assert await box.is_running() is False
    assert await box.kill() is False
    with pytest.raises(SandboxNotFoundException):
        await box.get_info()
    with pytest.raises(SandboxNotRunningException):
        await box.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        await box.files.read("/etc/passwd")


async def test_the_default_time_is_five_minutes(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create()
    assert 280 < left_of(await box.get_info()) <= 300
    await box.kill()


async def test_methods_of_the_class_take_an_id(box: Any, sdk: Sdk) -> None:
    assert (await sdk.get_info(box.sandbox_id)).sandbox_id == box.sandbox_id
    await sdk.set_timeout(box.sandbox_id, 1000)
    assert 990 < left_of(await sdk.get_info(box.sandbox_id)) <= 1000
    other = await sdk.connect(box.sandbox_id)
    assert other.sandbox_id == box.sandbox_id
    assert (await other.commands.run("echo $((6 * 7))")).stdout == "42\n"
    assert await sdk.kill(box.sandbox_id) is True
    assert await sdk.kill(box.sandbox_id) is False
    assert await other.is_running() is False


async def test_set_timeout_extends_and_shortens(box: Any) -> None:
    await box.set_timeout(3000)
    assert 2990 < left_of(await box.get_info()) <= 3000
    await box.set_timeout(100)
    assert 90 < left_of(await box.get_info()) <= 100


async def test_row_17_a_short_connect_keeps_the_hour(box: Any, sdk: Sdk) -> None:
    await box.set_timeout(3600)
    await box.connect(timeout=60)
    assert 3590 < left_of(await box.get_info()) <= 3600
    await sdk.connect(box.sandbox_id, timeout=60)
    assert 3590 < left_of(await box.get_info()) <= 3600
    await sdk.connect(box.sandbox_id, timeout=7200)
    assert 7190 < left_of(await box.get_info()) <= 7200


async def test_when_its_time_is_over_it_is_gone(box: Any, sdk: Sdk) -> None:
    await box.set_timeout(0)

    async def gone() -> bool:
        return not await box.is_running()

    await eventually(gone, "it is gone")

    async def forgotten() -> bool:
        try:
            await box.get_info()
        except SandboxNotFoundException:
            return True
        return False

    await eventually(forgotten, "nobody knows it")
    with pytest.raises(SandboxNotFoundException):
        await sdk.connect(box.sandbox_id)


async def test_lists_by_metadata_and_state_page_by_page(pointed: Flux, sdk: Sdk) -> None:
    mark = {"mark": uuid.uuid4().hex, "text": "a b&c=d/é"}
    boxes = [await sdk.create(timeout=300, metadata={**mark, "number": str(number)}) for number in range(5)]
    ids = [box.sandbox_id for box in boxes]
    await boxes[3].pause()

    async def found(limit: int = 100, order: str | None = None, **query: Any) -> list[Any]:
        pages = sdk.listed(query=SandboxQuery(metadata=mark, **query), limit=limit, order=order)
        return await sdk.all_of(pages)

    everything = await found()
    assert {info.sandbox_id for info in everything} == set(ids)
    assert {info.sandbox_id: info.state.value for info in everything} == {
        id: "paused" if number == 3 else "running" for number, id in enumerate(ids)
    }
    assert {info.metadata["number"] for info in everything} == {"0", "1", "2", "3", "4"}
    assert [info.sandbox_id for info in await found(state=[SandboxState.PAUSED])] == [ids[3]]
    running = await found(limit=2, state=[SandboxState.RUNNING])
    assert sorted(info.sandbox_id for info in running) == sorted(id for id in ids if id != ids[3])
    assert [info.sandbox_id for info in await found(limit=2, order="asc")] == ids
    assert [info.sandbox_id for info in await found(limit=2, order="desc")] == ids[::-1]
    assert await found(started_after=datetime.now(UTC) + timedelta(hours=1)) == []
    first = sdk.listed(query=SandboxQuery(metadata=mark), limit=2)
    page = await first.next_items()
    assert (len(page), first.has_next) == (2, True)
    rest = await sdk.all_of(sdk.listed(query=SandboxQuery(metadata=mark), limit=10, next_token=first.next_token))
    assert sorted(info.sandbox_id for info in page + rest) == sorted(ids)
    for box in boxes:
        assert await box.kill() is True
    assert await found() == []


async def test_row_18_one_idempotency_key_makes_one_sandbox(pointed: Flux, sdk: Sdk) -> None:
    key = uuid.uuid4().hex
    made = await asyncio.gather(*(sdk.create(timeout=300, idempotency_key=key) for _ in range(3)))
    assert len({box.sandbox_id for box in made}) == 1
    assert (await made[2].commands.run("echo one")).stdout == "one\n"
    with pytest.raises(SandboxException) as refused:
        await sdk.create(timeout=300, metadata={"an": "other"}, idempotency_key=key)
    assert refused.value.status_code == 409
    assert await made[0].kill() is True


async def test_a_context_manager_kills(pointed: Flux, sdk: Sdk) -> None:
    made = await sdk.create(timeout=300)
    if sdk.is_async:
        async with made:
            assert await made.is_running() is True
    else:
        with made.target:
            assert await made.is_running() is True
    assert await made.is_running() is False


async def test_many_at_the_same_time(pointed: Flux, sdk: Sdk) -> None:
    async def live(number: int) -> str:
        box = await sdk.create(timeout=300)
        await box.files.write("number", str(number))
        said: str = (await box.commands.run("cat number; hostname >/dev/null")).stdout
        assert await box.kill() is True
        return said

    assert await asyncio.gather(*(live(number) for number in range(8))) == [str(number) for number in range(8)]
