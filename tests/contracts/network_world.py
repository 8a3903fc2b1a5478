"""A host with a way out, and sandboxes connected to it: all are namespaces of the test's own.

sandbox (flux link) -- host -- outside: a default route, servers on TCP 443 and 80, UDP 443
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flux.network import commands
from tests.contracts.network_namespace import NetworkNamespace

NEEDS = [
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
ANSWER = """
import socket, threading
def answer(address, port, greeting):
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, port))
    def serve():
        while True:
            _, peer = listener.recvfrom(100)
            listener.sendto(greeting, peer)
    threading.Thread(target=serve, daemon=True).start()
"""
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) as asked:
    asked.settimeout(20)
    asked.connect(("{}", 0))
    asked.send(bytes([8, 0, 0xF7, 0xFE, 0, 0, 0, 1]))
    result = asked.recv(100)[20]
"""
OUTSIDE, HOST = "198.51.100.2", "198.51.100.1"
PRIVATE = ("10.1.2.3", "172.20.1.1", "192.168.7.7", "100.64.0.9", "198.18.0.1")


class World:
    """A host with a way out, and the sandboxes that were connected to it."""

    def __init__(self, directory: Path, ahead: int = 0) -> None:
        self.host, self.outside = NetworkNamespace(), NetworkNamespace()
        self.sandboxes: list[NetworkNamespace] = []
        # A new namespace may be born with what this machine does.
        assert self.host.run("open('/proc/sys/net/ipv4/ip_forward', 'w').write('0')") == ""
        self.host.command(f"ip link add uplink type veth peer name eth0 netns {self.outside.pid}")
        self.host.command(f"ip addr add {HOST}/24 dev uplink")
        self.host.command("ip link set uplink up")
        self.outside.command(f"ip addr add {OUTSIDE}/24 dev eth0")
        self.outside.command("ip addr add 192.0.2.80/32 dev eth0")
        for address in ("169.254.169.254", *PRIVATE):
            self.outside.command(f"ip addr add {address}/32 dev eth0")
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
from flux.ports.network import Reach
network = VethNetwork({str(directory)!r}, ahead={ahead})
sources = {{}}
def connect(number, reach):
    try:
        sources[number] = network.connect(f"sb{{number}}", Reach(**reach))
    except FluxError as error:
        return error.message
    return sources[number].namespace
def flows(number):
    return json.dumps(msgspec.to_builtins(sources[number].flows()))
""")
            == ""
        )

    def connect(self, *ports: int, internet: bool = False) -> int:
        """Connect a new sandbox; return its number."""
        number = len(self.sandboxes)
        connected = self.host.run(f"result = connect({number}, dict(ports={ports}, internet={internet}))")
        assert connected.isdecimal(), connected
        sandbox = NetworkNamespace(f"/proc/{self.host.pid}/fd/{connected}")
        self.sandboxes.append(sandbox)
        assert sandbox.run(PROBE) == ""
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
