"""Sandboxes with internet access, and their runs, on real links; their rules are tested where rules are."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code
from flux.core.requests import CreateSandbox, Exec, Speculate
from flux.network import commands, links
from flux.network.sink import TunSink
from flux.network.veth import VethNetwork
from flux.substrates.procbox.substrate import Procbox
from tests.engine.kit import ADMIN, Kit, refused, started

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root"),
    pytest.mark.skipif(bool(commands.missing_tools()), reason=f"not installed: {commands.missing_tools()}"),
]

REFUSED = """python3 -c '
import socket
try:
    socket.create_connection(("{}", {}), 20)
except ConnectionRefusedError:
    print("refused")
'"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[VethNetwork]:
    made = VethNetwork(str(tmp_path / "run"), ahead=1)
    yield made
    made.close()


@pytest.fixture
def box(tmp_path: Path, network: VethNetwork) -> Iterator[Kit]:
    made = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink(), network=network), persistent=True)
    yield made
    made.engine.close()


@pytest.mark.parametrize("managed", [False, True], ids=["bound", "managed"])
def test_a_run_reaches_what_its_sandbox_reaches_or_nothing(box: Kit, managed: bool) -> None:
    host = links.host_addresses()[0]
    with socket.create_server(("", 0)) as server:
        command = REFUSED.format(host, server.getsockname()[1])
        asked = CreateSandbox(workspace=None if managed else str(box.work), internet=True)
        sandbox = started(box.engine, asked)
        links_of = "cat /proc/net/dev /etc/resolv.conf"
        shown = box.engine.execute(ADMIN, sandbox.id, Exec(command=f"{command}; {links_of}")).stdout.text
        assert shown.startswith("refused\n")
        assert "eth0:" in shown and "tun0:" not in shown and "nameserver 169.254.77.1" in shown
        request = Speculate(command=command, paths=["/home"] if managed else [])
        made = box.engine.speculate(ADMIN, sandbox.id, request).changeset
        assert (made.stdout.text, made.side_effects.egress, made.side_effects.enforced) == (
            "refused\n",
            "unrestricted",
            True,
        )
        assert made.side_effects.observed is not None
        seen = {(flow.verdict, flow.proto, flow.dst, flow.port) for flow in made.side_effects.observed}
        assert ("refused", "tcp", host, server.getsockname()[1]) in seen
        request = Speculate(command="cat /proc/net/dev", network="none", paths=["/home"] if managed else [])
        without = box.engine.speculate(ADMIN, sandbox.id, request).changeset
        assert without.side_effects.egress == "blocked"
        assert "eth0:" not in without.stdout.text


def test_where_it_cannot_be_limited_it_is_refused(tmp_path: Path) -> None:
    kit = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink()), persistent=True)
    try:
        with refused(Code.UNAVAILABLE) as error:
            kit.sandbox(internet=True)
        assert "nothing here can limit its network" in error.value.message
    finally:
        kit.engine.close()
