"""What a sandbox uses and may reach."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from daemons import Flux
from e2b.exceptions import SandboxNotFoundException
from flavours import Sdk, eventually

#: Nobody answers at this address, so what a connection to it meets is the sandbox's own network.
CONNECT = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'"
ROUTES = "cut -f1,2 /proc/net/route | tail -n +2"


@pytest.mark.everywhere
async def test_metrics(box: Any, sdk: Sdk) -> None:
    await box.commands.run("python3 -c 'x = bytearray(30 << 20)'; head -c 5000000 /dev/zero >file")
    found = await eventually(box.get_metrics, "there are metrics")
    last = found[-1]
    assert last.cpu_count >= 1 and last.cpu_used_pct >= 0
    assert 0 < last.mem_used <= last.mem_total
    assert 0 < last.disk_used <= last.disk_total
    assert last.mem_cache >= 0
    assert abs(last.timestamp.astimezone(UTC) - datetime.now(UTC)) < timedelta(minutes=2)
    recent = await sdk.get_metrics(box.sandbox_id, start=datetime.now(UTC) - timedelta(hours=1), end=datetime.now(UTC))
    assert all(metric.timestamp.astimezone(UTC) <= datetime.now(UTC) for metric in recent)
    with pytest.raises(SandboxNotFoundException):
        await sdk.get_metrics("nosuchsandbox")


@pytest.mark.everywhere
async def test_without_the_internet(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300, allow_internet_access=False)
    assert (await box.get_info()).allow_internet_access is False
    ended = await box.commands.run(f"{CONNECT} 2>&1 || true")
    assert "Error" in ended.stdout
    await box.kill()


async def test_with_the_internet(pointed: Flux, sdk: Sdk) -> None:
    box = await sdk.create(timeout=300, allow_internet_access=True)
    assert (await box.get_info()).allow_internet_access is True
    assert "00000000" in (await box.commands.run(ROUTES)).stdout
    await box.kill()
