"""Daemons, sandboxes and keys for the tests of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from flux.api.http import HttpClient
from flux.core.access import Role
from flux.core.requests import CreateKey, CreateSandbox
from tests.api.daemons import Daemon


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that tests share; each makes sandboxes of its own."""
    running = Daemon(tmp_path_factory.mktemp("daemon") / "state")
    yield running
    assert running.stop() == 0


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons of a test's own; those that still run at its end are stopped."""
    running: list[Daemon] = []

    def start(*options: str, state_directory: Path | None = None) -> Daemon:
        running.append(Daemon(state_directory or tmp_path / "state", *options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    """The administrator over HTTP."""
    with daemon.http() as client:
        yield client


@pytest.fixture
def client(daemon: Daemon) -> Iterator[HttpClient]:
    """Flux's own client as the administrator."""
    one = daemon.client()
    yield one
    one.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A small project."""
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    (place / "src" / "main.py").write_text("print('one')\nprint('two')\n")
    (place / "notes.txt").write_text("first\nsecond\n")
    return place


@pytest.fixture
def sandbox(client: HttpClient, workspace: Path) -> Iterator[str]:
    """The id of a sandbox over ``workspace``."""
    made: str = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    yield made
    client.call("sandbox.delete", sandbox=made)


@pytest.fixture(scope="session")
def keys(daemon: Daemon) -> dict[Role, str]:
    """A key of every role."""
    admin = daemon.client()
    return {
        role: admin.call("keys.create", body=CreateKey(name=f"matrix-{role.value}", role=role.value))["key"]
        for role in Role
    }
