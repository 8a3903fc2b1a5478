"""Snapshots and forks: more sandboxes from one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from e2b import SandboxState
from e2b.exceptions import SandboxException, SandboxNotFoundException
from flavours import Sdk

pytestmark = pytest.mark.everywhere


async def test_a_snapshot_starts_sandboxes(box: Any, sdk: Sdk) -> None:
    await box.files.write("file", "then")
    taken = await box.create_snapshot()
    assert taken.snapshot_id
    assert (await box.get_info()).state is SandboxState.RUNNING
    await box.files.write("file", "later")
    started = await sdk.create(taken.snapshot_id, timeout=300)
    assert started.sandbox_id != box.sandbox_id
    assert await started.files.read("file") == "then"
    await started.files.write("file", "own")
    assert await box.files.read("file") == "later"
    second = await sdk.create(taken.snapshot_id, timeout=300)
    assert await second.files.read("file") == "then"
    assert [found.snapshot_id for found in await sdk.all_of(sdk.snapshots(sandbox_id=box.sandbox_id))] == [
        taken.snapshot_id
    ]
    for made in (started, second):
        assert await made.kill() is True
    assert await sdk.delete_snapshot(taken.snapshot_id) is True
    assert await sdk.delete_snapshot(taken.snapshot_id) is False
    assert await sdk.all_of(sdk.snapshots(sandbox_id=box.sandbox_id)) == []
    with pytest.raises(SandboxException):
        await sdk.create(taken.snapshot_id)


async def test_a_snapshot_outlives_its_sandbox_and_has_a_name(box: Any, sdk: Sdk) -> None:
    name = f"snap-{uuid.uuid4().hex[:12]}"
    await box.files.write("file", "then")
    taken = await box.create_snapshot(name=name)
    assert any(name in known for known in taken.names)
    assert await box.kill() is True
    started = await sdk.create(taken.snapshot_id, timeout=300)
    assert await started.files.read("file") == "then"
    named = await sdk.create(name, timeout=300)
    assert await named.files.read("file") == "then"
    assert [found.snapshot_id for found in await sdk.all_of(sdk.snapshots(name=name))] == [taken.snapshot_id]
    for made in (started, named):
        assert await made.kill() is True
    assert await sdk.delete_snapshot(taken.snapshot_id) is True


async def test_snapshots_page_by_page(box: Any, sdk: Sdk) -> None:
    taken = [(await box.create_snapshot()).snapshot_id for _ in range(3)]
    pages = sdk.snapshots(sandbox_id=box.sandbox_id, limit=2)
    first = await pages.next_items()
    assert (len(first), pages.has_next) == (2, True)
    rest = await pages.next_items()
    assert pages.has_next is False
    assert sorted(found.snapshot_id for found in first + rest) == sorted(taken)


async def test_a_snapshot_of_a_paused_one(box: Any, sdk: Sdk) -> None:
    await box.files.write("file", "kept")
    assert await box.pause() is True
    taken = await box.create_snapshot()
    assert (await box.get_info()).state is SandboxState.PAUSED
    started = await sdk.create(taken.snapshot_id, timeout=300)
    assert await started.files.read("file") == "kept"
    assert await started.kill() is True
    await sdk.delete_snapshot(taken.snapshot_id)


async def test_forks(box: Any, sdk: Sdk) -> None:
    await box.files.write("file", "shared")
    forks = await box.fork(count=3, timeout=300)
    assert not [fork for fork in forks if isinstance(fork, Exception)]
    assert len({box.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 4
    for number, fork in enumerate(forks):
        assert await fork.files.read("file") == "shared"
        await fork.files.write("file", str(number))
    assert [await fork.files.read("file") for fork in forks] == ["0", "1", "2"]
    assert await box.files.read("file") == "shared"
    assert (await forks[0].commands.run("cat file")).stdout == "0"
    for fork in forks:
        assert await fork.kill() is True
    with pytest.raises(SandboxNotFoundException):
        await sdk.fork("nosuchsandbox")


async def test_a_snapshot_of_what_is_not_there(sdk: Sdk, box: Any) -> None:
    with pytest.raises(SandboxNotFoundException):
        await sdk.create_snapshot("nosuchsandbox")
    assert await box.is_running() is True
