"""Internet access on real links, and links that were made ahead."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.network_namespace import NetworkNamespace
from tests.contracts.network_world import (
    ANSWER,
    ECHO,
    HOST,
    NEEDS,
    OUTSIDE,
    PRIVATE,
    PROHIBITED,
    RECEIVE,
    RECEIVED,
    REFUSED,
    SERVE,
    World,
)

pytestmark = NEEDS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "run")
    yield made
    made.close()


def test_internet_access_is_to_public_addresses_only(world: World) -> None:
    world.outside.run(f"{ANSWER}\nanswer('{OUTSIDE}', 9999, b'udp')")
    world.connect(internet=True)
    assert world.probe(f"'{OUTSIDE}', 443") == world.probe("'192.0.2.80', 80") == "outside"
    assert world.probe(f"'{OUTSIDE}', 9999, socket.SOCK_DGRAM") == "udp"
    assert world.sandboxes[0].run(ECHO.format(OUTSIDE)) == "0"
    closed = (HOST, "169.254.77.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "10.219.255.255", *PRIVATE)
    for target in closed:
        assert world.probe(f"'{target}', 443") == REFUSED
        assert world.probe(f"'{target}', 443, socket.SOCK_DGRAM") == PROHIBITED
    assert world.probe("'2001:db8::1', 443") == REFUSED
    assert world.probe(f"'{OUTSIDE}', 0, kind=socket.SOCK_RAW, protocol=47") == PROHIBITED
    flows = world.flows()
    assert sorted((flow for flow in flows if flow[0] == "allowed"), key=str) == sorted(
        [
            ("allowed", "tcp", OUTSIDE, 443, 1),
            ("allowed", "tcp", "192.0.2.80", 80, 1),
            ("allowed", "udp", OUTSIDE, 9999, 1),
            ("allowed", "icmp", OUTSIDE, None, 1),
        ],
        key=str,
    )
    refused = {(flow[1], flow[2], flow[3], flow[4]) for flow in flows if flow[0] == "refused"}
    expected = {(proto, target, 443, 1) for target in closed for proto in ("tcp", "udp")}
    assert refused == {*expected, ("tcp", "2001:db8::1", 443, 1), ("ip-47", OUTSIDE, None, 1)}


def test_the_hosts_own_rules_hold_internet_access_without_the_sandboxs(world: World) -> None:
    first, second = world.connect(internet=True), world.connect(internet=True)
    assert world.sandboxes[second].run(f"{SERVE}\nserve('0.0.0.0', 443, b'sandbox')") == ""
    world.sandboxes[first].command("nft flush ruleset")
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"
    assert world.sandboxes[0].run(ECHO.format(OUTSIDE)) == "0"
    for target in (HOST, "169.254.169.254", world.address(second), *PRIVATE):
        assert world.probe(f"'{target}', 443") == REFUSED
    world.outside.run(RECEIVE)
    for target in PRIVATE:
        world.sandboxes[first].run(f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{target}', 443))")
    assert world.outside.run(RECEIVED) == "TimeoutError None"


def test_with_internet_access_names_are_resolved_also_by_a_private_resolver(world: World) -> None:
    private = PRIVATE[0]
    assert world.outside.run(f"{ANSWER}\nanswer('{private}', 53, b'resolver')") == ""
    world.host.run(f"links.resolver = lambda: '{private}'")
    world.connect(internet=True)
    assert world.probe("'169.254.77.1', 53, socket.SOCK_DGRAM") == "resolver"
    assert world.probe("'169.254.77.1', 53") == "outside"
    assert world.probe(f"'{private}', 53, socket.SOCK_DGRAM") == PROHIBITED
    assert world.probe(f"'{private}', 53") == REFUSED
    assert world.probe("'169.254.77.1', 443") == REFUSED


def test_ports_beside_internet_access_are_open_to_private_addresses(world: World) -> None:
    world.connect(80, internet=True)
    assert world.probe(f"'{PRIVATE[0]}', 80") == "outside"
    assert world.probe(f"'{PRIVATE[0]}', 443") == REFUSED
    assert world.probe(f"'{HOST}', 80") == REFUSED


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "run", ahead=2)
    yield made
    made.close()


READY = """
with network._ahead._changed:
    result = network._ahead._changed.wait_for(lambda: len(network._ahead._ready) == 2, 30)
"""


def test_what_was_made_ahead_has_its_own_rules_and_address(prepared: World) -> None:
    first = prepared.connect(internet=True)
    assert prepared.host.run(READY) == "True"
    second, third = prepared.connect(internet=True), prepared.connect(443)
    assert len({prepared.address(number) for number in (first, second, third)}) == 3
    for number, port in ((first, 80), (second, 80), (third, 443)):
        assert prepared.probe(f"'{OUTSIDE}', {port}", number) == "outside"
        assert prepared.probe(f"'{HOST}', {port}", number) == REFUSED
    assert prepared.probe(f"'{OUTSIDE}', 80", third) == REFUSED
    assert prepared.flows(second) == [("allowed", "tcp", OUTSIDE, 80, 1), ("refused", "tcp", HOST, 80, 1)]


def test_what_is_taken_down_afterwards_leaves_its_flows_and_nothing_else(prepared: World) -> None:
    number = prepared.connect(internet=True)
    assert prepared.host.run(READY) == "True"
    assert prepared.probe(f"'{OUTSIDE}', 443") == "outside"
    prepared.sandboxes[number].kill()
    assert prepared.host.run(f"sources[{number}].close(); network.close(); network.close()") == ""
    assert prepared.left() == ([], "0")
    assert prepared.flows(number) == [("allowed", "tcp", OUTSIDE, 443, 1)]
    again = prepared.connect(443)  # by then without anything made ahead
    assert prepared.host.run(f"sources[{again}].close()") == ""
    assert prepared.left() == ([], "0")


def test_what_a_killed_owner_had_ready_goes_with_it(prepared: World) -> None:
    prepared.connect(internet=True)
    assert prepared.host.run(READY) == "True"
    holder = NetworkNamespace(f"/proc/{prepared.host.pid}/ns/net")
    try:
        prepared.host.kill()
        prepared.sandboxes[0].kill()
        gone = """
import socket, time
ends = time.monotonic() + 30
while any(name.startswith("flux") for _, name in socket.if_nameindex()) and time.monotonic() < ends:
    pass
result = [name for _, name in socket.if_nameindex() if name.startswith("flux")]
"""
        assert holder.run(gone) == "[]"
    finally:
        holder.kill()
