"""Daemons, keys and sandboxes for the tests with the public SDK; nothing of Flux is imported here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from daemons import Flux
from flavours import Sdk

WHY_NOT = "only root can have sandboxes from the template base: run the tests of the public SDKs with sudo"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs root; count as slow what repeats on two processes what was seen on one."""
    for item in items:
        if os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=WHY_NOT))
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if parameters.get("beside") == "split" or parameters.get("flux") == "split":
            # One of the two clients is enough to see that a node elsewhere answers as one here does.
            everywhere = "beside" in parameters or item.get_closest_marker("everywhere") is not None
            if not everywhere or parameters.get("sdk") == "sync":
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly that nothing was tested."""
    if os.geteuid() != 0:
        terminalreporter.section("the public SDKs were NOT tested", sep="!", red=True)
        terminalreporter.line(WHY_NOT)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory for the state of daemons, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="flux-sdk-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session", params=["all", "split"])
def flux(request: pytest.FixtureRequest, place: Path) -> Iterator[Flux]:
    """A running Flux: one daemon with every role, or a control plane and a node."""
    # it may be made several times in one session, in the order that the tests call for
    made = Flux(Path(tempfile.mkdtemp(prefix=request.param, dir=place)), split=request.param == "split")
    yield made
    made.stop()


def point(monkeypatch: pytest.MonkeyPatch, url: str, key: str) -> None:
    """Set the variables that a user sets, and no other that the SDK would read."""
    for name in [name for name in os.environ if name.startswith("E2B_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("E2B_API_KEY", key)
    monkeypatch.setenv("E2B_API_URL", url)
    monkeypatch.setenv("E2B_SANDBOX_URL", url)


@pytest.fixture
def pointed(flux: Flux, monkeypatch: pytest.MonkeyPatch) -> Flux:
    """The running Flux, with the SDK's environment set to it."""
    point(monkeypatch, flux.url, flux.key)
    return flux


@pytest.fixture(params=["sync", "async"])
async def sdk(request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    """The SDK's synchronous and asynchronous clients under one face."""
    made = Sdk(request.param)
    yield made
    await made.close()


@pytest.fixture
async def box(pointed: Flux, sdk: Sdk) -> AsyncIterator[Any]:
    """A sandbox of the test's own."""
    made = await sdk.create(timeout=600)
    yield made
    with suppress(Exception):  # the test may have killed it, or what it stands on
        await made.kill()
