"""The packet sink on real TUN devices: prompt refusals, a complete record."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.network.sink import TunSink
from flux.ports.network import NAMESERVER, SINK_ADDRESS_V4, SINK_ADDRESS_V6, SINK_DEVICE, FlowSource
from tests.contracts.network_namespace import NetworkNamespace

PREPARE = f"""
import fcntl, os, socket, struct, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"{SINK_DEVICE}", 0x1001))
"""
PROBE = """
def probe(family, kind, protocol, target, payload=b"x" * 9):
    with socket.socket(family, kind, protocol) as probed:
        probed.settimeout(20)
        started = time.monotonic()
        try:
            probed.connect(target)
            probed.send(payload)
            probed.recv(100)
            outcome = "answered"
        except OSError as error:
            outcome = os.strerror(error.errno) if error.errno else type(error).__name__
        return outcome if time.monotonic() - started < 5 else "late: " + outcome
"""


class Box:
    """A namespace whose every route ends in a sink."""

    def __init__(self) -> None:
        self.inside = NetworkNamespace()
        assert self.inside.run(PREPARE) == ""
        for line in (
            f"ip addr add {SINK_ADDRESS_V4}/24 dev {SINK_DEVICE}",
            f"ip addr add {SINK_ADDRESS_V6}/64 dev {SINK_DEVICE} nodad",
            f"ip link set {SINK_DEVICE} up",
            f"ip route add default dev {SINK_DEVICE}",
            f"ip -6 route add default dev {SINK_DEVICE}",
        ):
            self.inside.command(line)
        self.inside.send("socket.send_fds(channel, [b'.'], [tun]); os.close(tun)")
        _, (self.descriptor,), _, _ = socket.recv_fds(self.inside.channel, 1, 1)
        assert self.inside.receive() == ""
        assert self.inside.run(PROBE) == ""

    def probe(self, arguments: str) -> str:
        return self.inside.run(f"result = probe({arguments})")


@pytest.fixture
def box() -> Iterator[Box]:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun on this machine: the sink cannot be tried")
    made = Box()
    yield made
    made.inside.kill()


@pytest.fixture
def source(box: Box) -> Iterator[FlowSource]:
    made = TunSink().attach(box.descriptor)
    yield made
    made.close()


def seen(source: FlowSource) -> dict[tuple[str, str, int | None, str | None], int]:
    flows = source.flows()
    assert all(flow.verdict == "refused" for flow in flows)
    return {(flow.proto, flow.dst, flow.port, flow.name): flow.connections for flow in flows}


TCP4, TCP6 = "socket.AF_INET, socket.SOCK_STREAM, 0", "socket.AF_INET6, socket.SOCK_STREAM, 0"
UDP4, UDP6 = "socket.AF_INET, socket.SOCK_DGRAM, 0", "socket.AF_INET6, socket.SOCK_DGRAM, 0"
RAW = "socket.AF_INET, socket.SOCK_RAW"
ECHO4, ECHO6 = "bytes([8, 0, 0xF7, 0xFE, 0, 0, 0, 1])", "bytes([128, 0, 0, 0, 0, 0, 0, 1])"


@pytest.mark.parametrize(
    ("arguments", "outcome", "flow"),
    [
        (f"{TCP4}, ('192.0.2.1', 443)", "Connection refused", ("tcp", "192.0.2.1", 443, None)),
        (f"{TCP6}, ('2001:db8::1', 443)", "Connection refused", ("tcp", "2001:db8::1", 443, None)),
        (f"{TCP4}, ('{NAMESERVER}', 53)", "Connection refused", ("tcp", NAMESERVER, 53, None)),
        (f"{TCP4}, ('169.254.169.254', 80)", "Connection refused", ("tcp", "169.254.169.254", 80, None)),
        (f"{UDP4}, ('192.0.2.1', 123)", "No route to host", ("udp", "192.0.2.1", 123, None)),
        (f"{UDP6}, ('2001:db8::1', 123)", "Permission denied", ("udp", "2001:db8::1", 123, None)),
        (f"{RAW}, 1, ('192.0.2.1', 0), {ECHO4}", "No route to host", ("icmp", "192.0.2.1", None, None)),
        (f"{RAW}, 132, ('192.0.2.1', 0)", "No route to host", ("sctp", "192.0.2.1", 30840, None)),
        (
            f"socket.AF_INET6, socket.SOCK_RAW, 58, ('2001:db8::1', 0), {ECHO6}",
            "Permission denied",
            ("icmpv6", "2001:db8::1", None, None),
        ),
    ],
)
def test_refusals_are_prompt_and_recorded(
    box: Box, source: FlowSource, arguments: str, outcome: str, flow: tuple[str, str, int | None, str | None]
) -> None:
    assert box.probe(arguments) == outcome
    assert seen(source) == {flow: 1}


def test_the_kernels_own_talk_is_not_recorded(box: Box, source: FlowSource) -> None:
    box.inside.command(f"ip link set {SINK_DEVICE} down")
    box.inside.command(f"ip link set {SINK_DEVICE} up")
    box.inside.command(f"ip addr add fd00::77/64 dev {SINK_DEVICE} nodad")
    assert source.flows() == []


def test_names_fail_at_once_and_are_recorded(box: Box, source: FlowSource) -> None:
    question = "bytes([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + b'\\x03api\\x06github\\x03com\\0\\0\\x01\\0\\x01'"
    assert box.probe(f"{UDP4}, ('{NAMESERVER}', 53), {question}") == "answered"
    assert seen(source) == {("udp", NAMESERVER, 53, "api.github.com"): 1}


def test_a_resolver_fails_at_once(box: Box, source: FlowSource, tmp_path: Path) -> None:
    """The C library's own resolver, with the ``resolv.conf`` of a sandbox mounted over the machine's."""
    (tmp_path / "resolv.conf").write_text(f"nameserver {NAMESERVER}\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    done = box.inside.run(f"""
import subprocess
started = time.monotonic()
script = ("mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && mount --bind {tmp_path}/nsswitch.conf "
          "/etc/nsswitch.conf && exec getent ahosts api.example.org")
code = subprocess.run(["unshare", "--mount", "sh", "-c", script]).returncode
result = (code, time.monotonic() - started < 4)
""")
    assert done == "(2, True)"
    assert [flow.name for flow in source.flows()] == ["api.example.org"]


def test_what_was_sent_right_before_the_end_is_recorded(box: Box) -> None:
    box.inside.run("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    box.inside.run("[s.sendto(b'x', ('192.0.2.1', port)) for port in range(1, 101)]")
    box.inside.kill()
    source = TunSink().attach(box.descriptor)
    assert len(seen(source)) == 100
    source.close()
    source.close()
    assert len(seen(source)) == 100


def test_many_destinations_are_counted_together(box: Box, source: FlowSource) -> None:
    box.inside.run("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    for start in range(1, 601, 100):
        box.inside.run(f"[s.sendto(b'x', ('192.0.2.1', port)) for port in range({start}, {start + 100})]")
        source.flows()
    flows = source.flows()
    others = [flow for flow in flows if flow.dst == ""]
    assert len(others) == 1 and sum(flow.connections for flow in flows) == 600


def test_a_flood_is_survived_and_its_losses_are_told(box: Box) -> None:
    box.inside.run("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    box.inside.run("[s.sendto(b'x', ('192.0.2.1', 9)) for _ in range(3000)]")
    source = TunSink().attach(box.descriptor)
    flows = source.flows()
    assert flows[0].port == 9 and flows[0].connections > 400
    assert "lower bounds" in (flows[-1].name or "")
    assert box.probe(f"{TCP4}, ('192.0.2.1', 80)") == "Connection refused"
    source.close()


def test_several_sandboxes_share_one_sink(box: Box) -> None:
    other = Box()
    sink = TunSink()
    first, second = sink.attach(box.descriptor), sink.attach(other.descriptor)
    assert box.probe(f"{TCP4}, ('192.0.2.1', 1)") == "Connection refused"
    assert other.probe(f"{TCP4}, ('192.0.2.1', 2)") == "Connection refused"
    second.close()
    other.inside.kill()
    assert box.probe(f"{TCP4}, ('192.0.2.1', 3)") == "Connection refused"
    assert [flow.port for flow in first.flows()] == [1, 3]
    assert [flow.port for flow in second.flows()] == [2]
    first.close()


def test_a_device_that_is_gone_is_let_go(box: Box, source: FlowSource) -> None:
    assert box.probe(f"{TCP4}, ('192.0.2.1', 1)") == "Connection refused"
    box.inside.command(f"ip link del {SINK_DEVICE}")
    assert source.flows() == [Flow(proto="tcp", dst="192.0.2.1", port=1, verdict="refused")]


def test_a_descriptor_that_cannot_be_watched_is_closed(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(FluxError) as caught:
        TunSink().attach(descriptor)
    assert caught.value.code is Code.UNAVAILABLE
    with pytest.raises(OSError):
        os.fstat(descriptor)
