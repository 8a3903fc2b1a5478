"""A control plane and two nodes as processes of their own on loopback, over one object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.api.http import HttpClient
from flux.core.requests import AddNode, CreateSandbox
from tests.api.daemons import Daemon


class Split:
    """Three daemons. ``nodes``: by name."""

    def __init__(self, place: Path) -> None:
        config = place / "flux.toml"
        config.write_text(
            f'[objects]\nurl = "file://{place}/objects"\n[control]\ninventory_seconds = 0.5\n'
            '[e2b]\ndomain = "sandboxes.test"\n'
        )
        shared = ("--config", str(config))
        listen = ("--role", "node", "--node-listen", "127.0.0.1:0")
        self.nodes = {name: Daemon(place / name, *listen, *shared) for name in ("one", "two")}
        self.control = Daemon(place / "control", "--role", "control", *shared)
        client = self.client()
        for name, node in self.nodes.items():
            told = json.loads((node.state_directory / "daemon.json").read_text())
            token = (node.state_directory / "node.token").read_text().strip()
            client.call("node.add", body=AddNode(name=name, address=told["node"], token=token))

    def client(self) -> HttpClient:
        """Return the administrator's client of the control plane."""
        return self.control.client()

    def stop(self) -> list[int]:
        """Stop all; return their exit codes."""
        return [daemon.stop() for daemon in (self.control, *self.nodes.values())]


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """The daemons, which tests share."""
    made = Split(tmp_path_factory.mktemp("split"))
    yield made
    assert made.stop() == [0, 0, 0]


@pytest.fixture
def sandbox(split: Split) -> Iterator[str]:
    """The id of a managed sandbox on one of the nodes."""
    client = split.client()
    made: str = client.call("sandbox.create", body=CreateSandbox())["id"]
    yield made
    client.call("sandbox.delete", sandbox=made)
