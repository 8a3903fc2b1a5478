"""Port lists on real links."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.network import commands, rulesets
from flux.network.veth import VethNetwork
from flux.ports.network import Reach
from tests.contracts.network_world import (
    ANSWER,
    CONNECT,
    HOST,
    NEEDS,
    OUTSIDE,
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
    for place, address in ((world.outside, OUTSIDE), (world.host, HOST)):
        assert place.run(f"{ANSWER}\nanswer('{address}', 53, b'resolver')") == ""
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


@pytest.mark.parametrize("step", ["chain arrive", "chain output"])
def test_a_step_that_fails_leaves_nothing(world: World, tmp_path: Path, step: str) -> None:
    """The host's rules cannot be loaded, or the sandbox's."""
    real = shutil.which("nft", path=commands._PLACES)
    broken = tmp_path / "nft"
    broken.write_text(
        f'#!/bin/sh\ntext=$(cat)\ncase "$text" in *"{step}"*) echo broken >&2; exit 1;; esac\n'
        f'printf "%s\\n" "$text" | exec {real} "$@"\n'
    )
    broken.chmod(0o755)
    world.host.run(f"from flux.network import commands; commands._PLACES = '{tmp_path}:' + commands._PLACES")
    message = world.host.run("result = connect(0, dict(ports=(443,)))")
    assert message == "cannot set up a sandbox's network: nft: broken"
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


def test_no_address_is_given_twice_by_threads_side_by_side(world: World) -> None:
    done = world.host.run("""
import threading
threads = [threading.Thread(target=connect, args=(number, dict(ports=(443,)))) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = len({source.name for source in sources.values()})
""")
    assert done == "6"


def test_ports_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FluxError) as caught:
        VethNetwork(str(tmp_path)).connect("sb1", Reach(ports=(0,)))
    assert caught.value.code is Code.INVALID


def test_it_is_available_here(tmp_path: Path) -> None:
    check = VethNetwork(str(tmp_path)).available()
    assert check.ok and check.fix is None
