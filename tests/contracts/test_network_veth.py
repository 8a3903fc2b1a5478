"""Port lists on real links: host, sandboxes and the outside are namespaces of the test's own.

sandbox (flux link) -- host -- outside: a default route, servers on TCP 443 and 80, UDP 443
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flux.core.errors import Code, FluxError
from flux.network import commands, rulesets
from flux.network.veth import VethNetwork
from tests.contracts.network_namespace import NetworkNamespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect sandboxes to a network"),
    pytest.mark.skipif(bool(commands.missing_tools()), reason=f"not installed: {commands.missing_tools()}"),
]

SERVE = """
import socket, threading
def serve(address, port, greeting):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    def answer():
        while True:
            peer, _ = listener.accept()
            peer.sendall(greeting)
            peer.close()
    threading.Thread(target=answer, daemon=True).start()
"""
PROBE = """
import socket, time, os
def probe(target, port, kind=socket.SOCK_STREAM, protocol=0):
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, kind, protocol) as probed:
        probed.settimeout(20)
        started = time.monotonic()
        try:
            probed.connect((target, port))
            if kind != socket.SOCK_STREAM:
                probed.send(bytes([8, 0, 0xF7, 0xFE, 0, 0, 0, 1]))
            outcome = probed.recv(100).decode()
        except OSError as error:
            outcome = os.strerror(error.errno) if error.errno else type(error).__name__
        return outcome if time.monotonic() - started < 5 else "late: " + outcome
"""
RECEIVE = """
import socket
received = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
received.settimeout(0.2)
received.bind(("0.0.0.0", 443))
"""
RECEIVED = "result = received.recv(100)"
CONNECT = "import socket; s = socket.socket(); s.settimeout(0.2); s.connect(('{}', 443))"
REFUSED, PROHIBITED = "Connection refused", "Operation not permitted"
OUTSIDE, HOST = "198.51.100.2", "198.51.100.1"


class World:
    """A host with a way out, and the sandboxes that were connected to it."""

    def __init__(self, directory: Path) -> None:
        self.host, self.outside = NetworkNamespace(), NetworkNamespace()
        self.sandboxes: list[NetworkNamespace] = []
        self.host.command(f"ip link add uplink type veth peer name eth0 netns {self.outside.pid}")
        self.host.command(f"ip addr add {HOST}/24 dev uplink")
        self.host.command("ip link set uplink up")
        self.outside.command(f"ip addr add {OUTSIDE}/24 dev eth0")
        self.outside.command("ip addr add 192.0.2.80/32 dev eth0")
        self.outside.command("ip addr add 169.254.169.254/32 dev eth0")
        self.outside.command("ip link set eth0 up")
        self.host.command(f"ip route add default via {OUTSIDE}")
        for port in (443, 80, 53):
            assert self.outside.run(f"{SERVE}\nserve('0.0.0.0', {port}, b'outside')") == ""
        assert self.host.run(f"{SERVE}\nserve('0.0.0.0', 443, b'host'); serve('::', 444, b'host')") == ""
        assert (
            self.host.run(f"""
import sys; sys.path[:0] = {[entry for entry in os.sys.path if entry]!r}
import json, msgspec
from flux.core.errors import FluxError
from flux.network import links
from flux.network.veth import VethNetwork
network = VethNetwork({str(directory)!r})
sources = {{}}
def attach(number, pid, ports):
    try:
        sources[number] = network.attach(pid, f"sb{{number}}", ports)
    except FluxError as error:
        return error.message
    return ""
def flows(number):
    return json.dumps(msgspec.to_builtins(sources[number].flows()))
""")
            == ""
        )

    def connect(self, *ports: int) -> int:
        """Attach a new sandbox; return its number."""
        sandbox = NetworkNamespace()
        assert sandbox.run(PROBE) == ""
        self.sandboxes.append(sandbox)
        number = len(self.sandboxes) - 1
        assert self.host.run(f"result = attach({number}, {sandbox.pid}, {list(ports)})") == ""
        return number

    def probe(self, arguments: str, number: int = 0) -> str:
        return self.sandboxes[number].run(f"result = probe({arguments})")

    def flows(self, number: int = 0) -> list[tuple[Any, ...]]:
        listed = json.loads(self.host.run(f"result = flows({number})"))
        return [
            (each["verdict"], each["proto"], each["dst"], each.get("port"), each.get("connections", 1))
            for each in listed
        ]

    def address(self, number: int) -> str:
        shown = json.loads(self.sandboxes[number].command("ip -j -4 addr show eth0"))
        return str(shown[0]["addr_info"][0]["local"])

    def left(self) -> tuple[list[str], str]:
        """Links and tables of Flux on the host, and whether it forwards."""
        names = [each["ifname"] for each in json.loads(self.host.command("ip -j link show"))]
        tables = self.host.command("nft list tables").split()
        return (
            [name for name in [*names, *tables] if name.startswith("flux")],
            self.host.run("result = open('/proc/sys/net/ipv4/ip_forward').read().strip()"),
        )

    def close(self) -> None:
        for each in [*self.sandboxes, self.host, self.outside]:
            each.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "run")
    yield made
    made.close()


def test_listed_ports_are_reached_and_the_rest_is_refused_at_once(world: World) -> None:
    world.connect(443)
    raw = "kind=socket.SOCK_RAW"
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"
    assert world.probe("'192.0.2.80', 443") == "outside"
    assert world.probe("'192.0.2.80', 443") == "outside"
    assert world.probe(f"'{OUTSIDE}', 80") == REFUSED
    assert world.probe(f"'{OUTSIDE}', 443, socket.SOCK_DGRAM") == PROHIBITED
    assert world.probe(f"'{OUTSIDE}', 0, {raw}, protocol=1") == PROHIBITED
    assert world.probe(f"'{OUTSIDE}', 0, {raw}, protocol=47") == PROHIBITED
    assert world.probe("'2001:db8::1', 443") == REFUSED
    assert world.probe("'2001:db8::1', 443, socket.SOCK_DGRAM") == PROHIBITED
    assert sorted(world.flows(), key=str) == sorted(
        [
            ("allowed", "tcp", OUTSIDE, 443, 1),
            ("allowed", "tcp", "192.0.2.80", 443, 2),
            ("refused", "tcp", OUTSIDE, 80, 1),
            ("refused", "udp", OUTSIDE, 443, 1),
            ("refused", "icmp", OUTSIDE, None, 1),
            ("refused", "ip-47", OUTSIDE, None, 1),
            ("refused", "tcp", "2001:db8::1", 443, 1),
            ("refused", "udp", "2001:db8::1", 443, 1),
        ],
        key=str,
    )


def test_the_host_and_the_clouds_metadata_are_out_of_reach(world: World) -> None:
    world.connect(443, 444, 80)
    for target in (HOST, "169.254.77.1", "169.254.169.254", "100.100.100.200", "10.219.255.255"):
        assert world.probe(f"'{target}', 443") == REFUSED
    assert world.probe("'127.0.0.1', 443") == REFUSED
    flows = world.flows()
    assert {flow[2] for flow in flows} == {HOST, "169.254.77.1", "169.254.169.254", "100.100.100.200", "10.219.255.255"}
    assert all(flow[0] == "refused" for flow in flows)


def test_an_address_that_the_host_gets_later_is_refused_too(world: World) -> None:
    world.connect(443)
    world.host.command("ip addr add 203.0.113.9/32 dev uplink")
    assert world.probe("'203.0.113.9', 443") == REFUSED
    assert world.flows() == [("refused", "tcp", "203.0.113.9", 443, 1)]


def test_the_hosts_own_rules_hold_without_the_sandboxs(world: World) -> None:
    first, second = world.connect(443), world.connect(443)
    assert world.sandboxes[second].run(f"{SERVE}\nserve('0.0.0.0', 443, b'sandbox')") == ""
    world.sandboxes[first].command("nft flush ruleset")
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"
    for target, port in ((HOST, 443), ("169.254.169.254", 443), (world.address(second), 443), (OUTSIDE, 80)):
        assert world.probe(f"'{target}', {port}") == REFUSED
    assert world.host.run(RECEIVE) == world.outside.run(RECEIVE) == ""
    for target in (HOST, OUTSIDE):
        world.sandboxes[first].run(f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{target}', 443))")
    assert world.host.run(RECEIVED) == world.outside.run(RECEIVED) == "TimeoutError None"
    world.outside.command(f"ip route add 10.219.0.0/16 via {HOST}")
    assert world.sandboxes[first].run(RECEIVE) == ""
    world.outside.run(f"received.sendto(b'x', ('{world.address(first)}', 443))")
    assert world.sandboxes[first].run(RECEIVED) == "TimeoutError None"


def test_a_spoofed_source_goes_nowhere(world: World) -> None:
    """Counted where it would arrive, since no answer could find its way back."""
    world.connect(443)
    count = "nft add rule inet seen input tcp flags syn / syn,ack counter"
    world.outside.command("nft add table inet seen")
    world.outside.command("nft add chain inet seen input { type filter hook input priority 0 ; }")
    world.outside.command(count)
    world.sandboxes[0].command("ip addr add 10.219.1.77/32 dev eth0")
    spoofed = CONNECT.format(OUTSIDE).replace("s.connect", "s.bind(('10.219.1.77', 0)); s.connect")
    assert world.sandboxes[0].run(spoofed) == "TimeoutError None"
    assert "packets 0 " in world.outside.command("nft list table inet seen")
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"
    assert "packets 1 " in world.outside.command("nft list table inet seen")


def test_a_redirection_of_the_hosts_own_opens_no_way_to_it(world: World) -> None:
    world.connect(443)
    world.host.command("nft add table inet own")
    world.host.command("nft add chain inet own proxy { type nat hook prerouting priority -99 ; }")
    world.host.command("nft add rule inet own proxy tcp dport 443 redirect to :443")
    assert world.sandboxes[0].run(CONNECT.format(OUTSIDE)) == "TimeoutError None"


def test_sandboxes_do_not_reach_one_another_and_are_not_reached(world: World) -> None:
    first, second = world.connect(443), world.connect(443)
    assert world.address(first) != world.address(second)
    assert world.sandboxes[second].run(f"{SERVE}\nserve('0.0.0.0', 443, b'sandbox')") == ""
    assert world.probe(f"'{world.address(second)}', 443", first) == REFUSED
    world.outside.command(f"ip route add 10.219.0.0/16 via {HOST}")
    for place in (world.outside, world.host):
        assert place.run(CONNECT.format(world.address(second))) == "TimeoutError None"


def test_names_are_resolved_only_where_port_53_is_listed(world: World) -> None:
    answer = """
import socket, threading
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("{}", 53))
def answer():
    while True:
        _, peer = listener.recvfrom(100)
        listener.sendto(b"resolver", peer)
threading.Thread(target=answer, daemon=True).start()
"""
    assert world.outside.run(answer.format(OUTSIDE)) == world.host.run(answer.format(HOST)) == ""
    resolver = "links.resolver = lambda: {!r}"
    world.host.run(resolver.format(OUTSIDE))
    without, with_dns = world.connect(443), world.connect(53)
    world.host.run(resolver.format(HOST))
    to_host = world.connect(53)
    world.host.run(resolver.format(None))
    nowhere = world.connect(53)
    udp = "'169.254.77.1', 53, socket.SOCK_DGRAM"
    assert [world.probe(udp, each) for each in (without, nowhere)] == [PROHIBITED, PROHIBITED]
    assert [world.probe("'169.254.77.1', 53", each) for each in (without, nowhere)] == [REFUSED, REFUSED]
    assert [world.probe(udp, each) for each in (with_dns, to_host)] == ["resolver", "resolver"]
    assert world.probe("'169.254.77.1', 53", with_dns) == "outside"
    assert world.probe("'169.254.77.1', 443", with_dns) == REFUSED
    assert world.probe(f"'{HOST}', 53, socket.SOCK_DGRAM", to_host) == PROHIBITED
    assert world.probe(f"'{OUTSIDE}', 53, socket.SOCK_DGRAM", with_dns) == PROHIBITED
    assert world.flows(with_dns)[:2] == [
        ("allowed", "udp", "169.254.77.1", 53, 1),
        ("allowed", "tcp", "169.254.77.1", 53, 1),
    ]


def test_nothing_is_left_after_close_and_the_flows_stay(world: World) -> None:
    number = world.connect(443)
    assert world.left()[1] == "1"
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"
    world.sandboxes[number].kill()
    assert world.flows() == [("allowed", "tcp", OUTSIDE, 443, 1)]
    assert world.host.run(f"sources[{number}].close(); sources[{number}].close()") == ""
    assert world.left() == ([], "0")
    assert world.flows() == [("allowed", "tcp", OUTSIDE, 443, 1)]


def test_forwarding_stays_on_while_another_sandbox_needs_it(world: World) -> None:
    first, second = world.connect(443), world.connect(443)
    world.host.run(f"sources[{first}].close()")
    assert world.probe(f"'{OUTSIDE}', 443", second) == "outside"
    assert len(world.left()[0]) == 2 and world.left()[1] == "1"
    world.host.run(f"sources[{second}].close()")
    assert world.left() == ([], "0")


def test_forwarding_that_was_on_before_stays_on(world: World) -> None:
    world.host.run("open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')")
    number = world.connect(443)
    world.host.run(f"sources[{number}].close()")
    assert world.left() == ([], "1")


def test_what_a_killed_owner_left_is_swept(world: World) -> None:
    """The sandbox dies with its owner and takes the link along; table and forwarding are what is left."""
    world.connect(443)
    link = world.left()[0][0]
    world.host.command(f"ip link del {link}")
    assert world.left() == ([link], "1")
    assert world.host.run("network.sweep()") == ""
    assert world.left() == ([], "0")


def test_a_sweep_spares_the_living(world: World) -> None:
    world.connect(443)
    assert world.host.run("network.sweep()") == ""
    assert world.probe(f"'{OUTSIDE}', 443") == "outside"


@pytest.mark.parametrize("step", ["make_link", "bring_up"])
def test_a_step_that_fails_leaves_nothing(world: World, step: str) -> None:
    sandbox = NetworkNamespace()
    world.sandboxes.append(sandbox)
    # The name that the sandbox's end is to have is taken; or its rules are there already, which fails later.
    sandbox.command("ip link add eth0 type veth peer name other" if step == "make_link" else "nft add table inet flux")
    if step == "bring_up":
        sandbox.command("nft add set inet flux allowed { type ipv6_addr ; }")
    message = world.host.run(f"result = attach(0, {sandbox.pid}, [443])")
    assert "cannot set up a sandbox's network" in message
    assert world.left() == ([], "0")


def test_more_destinations_than_are_listed_are_counted(world: World) -> None:
    world.connect(443)
    sent = world.sandboxes[0].run(f"""
sender, refused = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
for port in range(1, {rulesets._DESTINATIONS_MAX + 101}):
    try:
        sender.sendto(b"x", ("{OUTSIDE}", port))
    except PermissionError:
        refused += 1
result = refused
""")
    assert int(sent) == rulesets._DESTINATIONS_MAX + 100
    flows = world.flows()
    assert len(flows) == rulesets._DESTINATIONS_MAX + 1
    assert flows[-1] == ("refused", "ip", "", None, 100)


def test_no_address_is_given_twice_by_processes_side_by_side(world: World) -> None:
    sandboxes = [NetworkNamespace() for _ in range(6)]
    world.sandboxes += sandboxes
    done = world.host.run(f"""
import threading
problems = []
def join(number, pid):
    problems.append(attach(number, pid, [443]))
threads = [threading.Thread(target=join, args=pair) for pair in enumerate({[each.pid for each in sandboxes]})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = problems
""")
    assert done == str([""] * 6)
    assert len({world.address(number) for number in range(6)}) == 6


def test_a_process_that_is_gone_cannot_be_connected(tmp_path: Path) -> None:
    with pytest.raises(FluxError) as caught:
        VethNetwork(str(tmp_path)).attach(0x7FFFFFFF, "sb1", [443])
    assert caught.value.code is Code.UNAVAILABLE


def test_ports_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FluxError) as caught:
        VethNetwork(str(tmp_path)).attach(os.getpid(), "sb1", [0])
    assert caught.value.code is Code.INVALID


def test_it_is_available_here(tmp_path: Path) -> None:
    check = VethNetwork(str(tmp_path)).available()
    assert check.ok and check.fix is None
