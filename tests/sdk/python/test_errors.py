"""What goes wrong, and the exception that the SDK makes of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from daemons import Flux, new_key
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    TimeoutException,
)
from flavours import Sdk, eventually

from conftest import point


@pytest.mark.everywhere
async def test_a_key_that_was_never_issued(pointed: Flux, sdk: Sdk) -> None:
    wrong = {"api_key": "e2b_" + "0" * 40}
    with pytest.raises(AuthenticationException):
        await sdk.create(**wrong)
    with pytest.raises(AuthenticationException):
        await sdk.connect("sb1", **wrong)
    with pytest.raises(AuthenticationException):
        await sdk.all_of(sdk.listed(**wrong))


async def test_another_users_sandbox_is_not_there(
    box: Any, flux: Flux, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(monkeypatch, flux.url, new_key(flux.control.state, f"other-{sdk.name}"))
    for call in (sdk.get_info, sdk.connect, sdk.pause):
        with pytest.raises(SandboxNotFoundException):
            await call(box.sandbox_id)
    assert await sdk.kill(box.sandbox_id) is False
    assert box.sandbox_id not in [info.sandbox_id for info in await sdk.all_of(sdk.listed())]
    assert await box.is_running() is True


@pytest.mark.everywhere
async def test_a_token_that_is_not_the_sandboxes(box: Any, sdk: Sdk) -> None:
    other = await sdk.create(timeout=300)
    held = box if sdk.is_async else box.target
    stranger = type(held)(
        sandbox_id=other.sandbox_id,
        sandbox_domain=None,
        envd_version=held._envd_version,
        envd_access_token=held._envd_access_token,
        traffic_access_token=None,
        connection_config=type(held.connection_config)(
            extra_sandbox_headers={
                "E2b-Sandbox-Id": other.sandbox_id,
                "E2b-Sandbox-Port": "49983",
                "X-Access-Token": held._envd_access_token,
            }
        ),
    )
    stranger = stranger if sdk.is_async else type(box)(stranger, box._pool)
    with pytest.raises(AuthenticationException):
        await stranger.files.write("stolen", "x")
    with pytest.raises(AuthenticationException):
        await stranger.commands.run("true")
    assert await other.files.exists("stolen") is False
    await other.kill()


async def test_a_template_that_is_not_there(pointed: Flux, sdk: Sdk) -> None:
    with pytest.raises((SandboxException, NotFoundException)) as refused:
        await sdk.create("no-such-template")
    assert "no-such-template" in str(refused.value)
    assert getattr(refused.value, "status_code", None) in (400, 404)


async def test_what_flux_cannot_do_is_refused(pointed: Flux, sdk: Sdk) -> None:
    before = len(await sdk.all_of(sdk.listed()))
    with pytest.raises(SandboxException):
        await sdk.create(volume_mounts={"/mnt/data": "volume"})
    with pytest.raises(SandboxException):
        await sdk.create(timeout=-5)
    assert len(await sdk.all_of(sdk.listed())) == before


@pytest.mark.everywhere
async def test_killed_in_the_middle_of_a_command(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "echo ready; sleep 1000")
    await running.output.said("ready\n")
    assert await box.kill() is True
    with pytest.raises(SandboxNotRunningException) as ended:
        await running.result()
    assert "killed or reached its end of life" in str(ended.value)


@pytest.mark.everywhere
async def test_paused_in_the_middle_of_a_command(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "echo ready; sleep 1000")
    await running.output.said("ready\n")
    assert await box.pause() is True
    with pytest.raises(SandboxNotRunningException):
        await running.result()


@pytest.mark.everywhere
async def test_killed_in_the_middle_of_a_watch(pointed: Flux) -> None:
    sdk = Sdk("async")
    box = await sdk.create(timeout=300)
    exits: list[Any] = []
    await box.files.watch_dir("/home/user", on_event=lambda event: None, on_exit=exits.append)
    assert await box.kill() is True
    await eventually(lambda: exits, "the watch has ended")
    assert len(exits) == 1 and isinstance(exits[0], SandboxNotRunningException)


async def test_a_command_that_takes_too_long(box: Any) -> None:
    with pytest.raises(TimeoutException):
        await box.commands.run("echo begun >begun; sleep 1000", timeout=1)
    assert await box.files.exists("begun") is True
    await eventually(lambda: no_sleep(box), "it was killed")


async def no_sleep(box: Any) -> bool:
    """Tell whether no command sleeps in a sandbox any more."""
    listed = await box.commands.list()
    ended = await box.commands.run("pgrep -x sleep || echo none")
    return listed == [] and bool(ended.stdout == "none\n")


async def test_files_that_are_not_there_or_of_another_kind(box: Any) -> None:
    for call in (box.files.read, box.files.list, box.files.get_info):
        with pytest.raises(FileNotFoundException):
            await call("/no/such/file")
    with pytest.raises(FileNotFoundException):
        await box.files.rename("/no/such/file", "/tmp/other")
    with pytest.raises(InvalidArgumentException):
        await box.files.read("/etc")
    with pytest.raises(InvalidArgumentException):
        await box.files.list("/etc/passwd")
    with pytest.raises((InvalidArgumentException, FileNotFoundException, SandboxException)):
        await box.files.write("/etc/passwd/below", "x")


async def test_a_user_that_is_not_there(box: Any) -> None:
    with pytest.raises((InvalidArgumentException, AuthenticationException)):
        await box.files.read("/etc/passwd", user="nobodyhere")
    with pytest.raises((InvalidArgumentException, AuthenticationException)):
        await box.commands.run("true", user="nobodyhere")


async def test_a_directory_that_is_not_there(box: Any) -> None:
    with pytest.raises(InvalidArgumentException):
        await box.commands.run("true", cwd="/no/such/directory")


async def test_who_asks_too_often_is_told_so(place: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Flux(
        Path(tempfile.mkdtemp(prefix="bounded", dir=place)),
        configuration="[api]\nrequests_per_second = 0.01\nburst = 5\n",
    )
    try:
        point(monkeypatch, bounded.url, bounded.key)
        for _ in range(5):
            assert await sdk.all_of(sdk.listed()) == []
        with pytest.raises(RateLimitException) as refused:
            await sdk.get_info("nosuchsandbox", request_timeout=5)
        assert refused.value.status_code == 429
    finally:
        bounded.stop()
