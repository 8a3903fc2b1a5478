"""Pause and connect: files stay, processes go; pauses at the time-out, and waking by use."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from daemons import Flux
from e2b import SandboxState
from e2b.exceptions import NotFoundException, SandboxNotFoundException, SandboxNotRunningException
from flavours import Sdk, eventually

everywhere = pytest.mark.everywhere

PAUSING = {"on_timeout": "pause"}
WAKING = {"on_timeout": "pause", "auto_resume": True}


async def is_paused(box: Any) -> bool:
    """Tell whether a sandbox is paused."""
    state: SandboxState = (await box.get_info()).state
    return state is SandboxState.PAUSED


@everywhere
async def test_files_stay_and_processes_go(box: Any, sdk: Sdk) -> None:
    await box.files.write("/home/user/kept", "what was there\n")
    await box.commands.run("mkdir -m 700 own && ln -s ../kept own/link && chmod 640 kept && touch -d @1000000000 kept")
    sleeper = await box.commands.run("sleep 1000", background=True)
    assert await box.pause() is True
    assert await is_paused(box)
    assert await box.is_running() is False
    with pytest.raises(SandboxNotRunningException):
        await box.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        await box.files.read("/home/user/kept")
    assert await box.pause() is False
    again = await sdk.connect(box.sandbox_id, timeout=300)
    assert again.sandbox_id == box.sandbox_id
    assert (await box.get_info()).state is SandboxState.RUNNING
    assert await again.files.read("/home/user/kept") == "what was there\n"
    kept = await again.commands.run("stat -c '%a %Y %U' kept own; cat own/link")
    assert kept.stdout.splitlines()[0] == "640 1000000000 user"
    assert kept.stdout.splitlines()[1].startswith("700 ")
    assert kept.stdout.splitlines()[2] == "what was there"
    with pytest.raises(NotFoundException):
        await again.commands.connect(sleeper.pid)
    assert await again.commands.kill(sleeper.pid) is False
    assert await again.commands.list() == []


@everywhere
async def test_the_old_object_works_after_the_connect(box: Any) -> None:
    await box.files.write("file", "1")
    assert await box.pause() is True
    await box.connect()
    assert await box.files.read("file") == "1"
    assert (await box.commands.run("cat file")).stdout == "1"
    assert await box.is_running() is True


@pytest.mark.parametrize("mode", ["full", "filesystem"])
async def test_modes_of_a_pause(box: Any, mode: str) -> None:
    await box.files.write("file", mode)
    assert await box.pause(mode=mode) is True
    await box.connect(on_resume="reboot" if mode == "filesystem" else "restore")
    assert await box.files.read("file") == mode


@everywhere
async def test_pause_and_connect_give_the_time_asked_for(box: Any, sdk: Sdk) -> None:
    assert await box.pause() is True
    await sdk.connect(box.sandbox_id, timeout=900)
    left = ((await box.get_info()).end_at - datetime.now(UTC)).total_seconds()
    assert 890 < left <= 900


@everywhere
async def test_what_is_not_there_cannot_be_paused_or_connected(box: Any, sdk: Sdk) -> None:
    assert await box.kill() is True
    with pytest.raises(SandboxNotFoundException):
        await box.pause()
    with pytest.raises(SandboxNotFoundException):
        await sdk.pause("nosuchsandbox")
    with pytest.raises(SandboxNotFoundException):
        await sdk.connect(box.sandbox_id)


@everywhere
async def test_a_paused_one_is_killed(box: Any, sdk: Sdk) -> None:
    assert await box.pause() is True
    assert await sdk.kill(box.sandbox_id) is True
    assert await sdk.kill(box.sandbox_id) is False
    with pytest.raises(SandboxNotFoundException):
        await sdk.connect(box.sandbox_id)


@everywhere
async def test_many_connects_join_one_wake(box: Any, sdk: Sdk) -> None:
    await box.files.write("file", "kept")
    assert await box.pause() is True
    woken = await asyncio.gather(*(sdk.connect(box.sandbox_id) for _ in range(6)))
    assert {other.sandbox_id for other in woken} == {box.sandbox_id}
    assert [await other.files.read("file") for other in woken] == ["kept"] * 6
    pids = {(await other.commands.run("readlink /proc/self/ns/pid")).stdout for other in woken}
    assert len(pids) == 1


@everywhere
async def test_its_time_being_over_pauses_it(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300, lifecycle=PAUSING)
    assert (await box.get_info()).lifecycle == {"on_timeout": "pause", "auto_resume": False}
    await box.files.write("file", "kept")
    await box.set_timeout(0)
    await eventually(lambda: is_paused(box), "it is paused")
    assert await box.is_running() is False
    with pytest.raises(SandboxNotRunningException):
        await box.files.read("file")
    await box.connect(timeout=300)
    assert await box.files.read("file") == "kept"
    await box.set_timeout(0)
    await eventually(lambda: is_paused(box), "it is paused again")
    assert await box.kill() is True


@everywhere
async def test_row_13_every_acknowledged_line_is_there_after_a_pause_at_the_time_out(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300, lifecycle=PAUSING)
    loop = "i=0; while :; do echo $i >>lines; sync lines; echo $i; i=$((i+1)); done"
    writing = await sdk.start(box, loop)
    await writing.output.said("\n20\n")
    await box.set_timeout(0)
    with pytest.raises(SandboxNotRunningException):
        await writing.result()
    await eventually(lambda: is_paused(box), "it is paused")
    # The last may have been cut off on its way.
    acknowledged = writing.output.stdout.split("\n")[:-1]
    await box.connect(timeout=300)
    lines = (await box.files.read("lines")).split()
    assert lines[: len(acknowledged)] == acknowledged
    assert lines == [str(number) for number in range(len(lines))]
    await box.kill()


@everywhere
@pytest.mark.parametrize("use", ["command", "read", "write", "list", "download"])
async def test_use_wakes_what_may_wake_by_itself(pointed: Flux, sdk: Sdk, use: str) -> None:
    box = await sdk.create(timeout=300, lifecycle=WAKING)
    assert (await box.get_info()).lifecycle == {"on_timeout": "pause", "auto_resume": True}
    await box.files.write("file", "kept")
    assert await box.pause() is True
    assert await box.is_running() is False  # a look wakes nobody
    assert await is_paused(box)
    if use == "command":
        assert (await box.commands.run("cat file")).stdout == "kept"
    elif use == "read":
        assert await box.files.read("file") == "kept"
    elif use == "write":
        await box.files.write("other", "new")
    elif use == "list":
        assert "file" in [entry.name for entry in await box.files.list(".")]
    else:
        stream = await box.files.read("file", format="stream")
        assert b"".join([chunk async for chunk in sdk.chunks(stream)]) == b"kept"
    assert (await box.get_info()).state is SandboxState.RUNNING
    assert await box.files.read("file") == "kept"
    await box.kill()


@everywhere
async def test_many_uses_wake_it_once(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300, lifecycle=WAKING)
    await box.files.write("file", "kept")
    assert await box.pause() is True
    spaces = await asyncio.gather(*(box.commands.run("readlink /proc/self/ns/pid; cat file") for _ in range(5)))
    assert len({ended.stdout for ended in spaces}) == 1
    await box.kill()


async def test_row_11_twenty_cycles_each_with_a_file(box: Any) -> None:
    for cycle in range(20):
        await box.files.write(f"file{cycle}", str(cycle))
        assert await box.pause() is True
        await box.connect(timeout=600)
    assert [await box.files.read(f"file{cycle}") for cycle in range(20)] == [str(cycle) for cycle in range(20)]
    assert {f"file{cycle}" for cycle in range(20)} <= {entry.name for entry in await box.files.list(".")}


@pytest.mark.slow
async def test_row_8_two_hundred_times(box: Any, sdk: Sdk) -> None:
    await box.files.write("kept", "before")
    for cycle in range(200):
        assert await box.pause() is True
        woken = await sdk.connect(box.sandbox_id, timeout=600)
        assert woken.sandbox_id == box.sandbox_id
        said = await woken.commands.run(f"echo {cycle} >>lines; cat kept")
        assert said.stdout == "before"
    assert (await box.files.read("lines")).split() == [str(cycle) for cycle in range(200)]
