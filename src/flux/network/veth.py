"""Sandboxes that may reach TCP ports of any host but this one (spec: network). Needs root, ``ip`` and ``nft``.

Each sandbox gets a veth pair. Its end has an address of its own from ``10.219.0.0/16``; the host's end has the address
that the sandbox's ``resolv.conf`` names, a route to the sandbox, and a table of rules named like the link. The rules
are in force before either end is up. They allow new TCP connections to the listed ports and what belongs to them;
everything else is refused at once and counted: other ports, UDP, ICMP, IPv6, this host's addresses, cloud metadata
addresses, other sandboxes.

Names are resolved only if port 53 is listed: queries to the sandbox's nameserver, over UDP and TCP, then go to the
first IPv4 resolver of the host that is not on its loopback.

The host must forward packets. If it does not yet, ``net.ipv4.ip_forward`` is switched on with the first sandbox and off
again after the last one; a forwarding policy of other rules (a ``DROP`` by a firewall) stays in force and must let the
links named ``flux*`` through.

Leftovers: a link goes with its sandbox's namespace, and a table without a link is removed by whoever comes next.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.core.policy import checked_ports
from flux.network import commands, links, rulesets
from flux.ports.network import FlowSource
from flux.ports.substrate import Check

_SUBJECT = "network ports"
_NETWORK = rulesets.SANDBOX_RANGE.split(".0.0/")[0]
_PLACES = 0xFFFE
_DNS_PORT = 53
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class VethNetwork:
    """Connects sandboxes by veth pairs; see ``ports.network.PortNetwork``.

    Args:
        directory: holds the lock between processes and remembers that forwarding was switched on; lost at reboot.
    """

    def __init__(self, directory: str = "/run/flux") -> None:
        self._directory = Path(directory)

    def available(self) -> Check:
        """Tell whether this machine can do it: the rights, the programs, and the kernel by a rehearsal of the rules."""
        if os.geteuid() != 0:
            return self._lacking("only root can connect a sandbox to the network", "run Flux with sudo")
        missing = commands.missing_tools()
        if missing:
            return self._lacking(f"not installed: {', '.join(missing)}", "apt-get install nftables iproute2 util-linux")
        if _FORWARD.read_text().strip() == "0" and not os.access(_FORWARD, os.W_OK):
            return self._lacking("the host does not forward packets", "sysctl -w net.ipv4.ip_forward=1")
        rehearsed = rulesets.Rules(link="flux0000", address=_address(0), ports=(_DNS_PORT,), resolver="192.0.2.1")
        try:
            commands.run("nft", "--check", "-f", "-", text=rulesets.inner(rehearsed) + rulesets.outer(rehearsed))
        except FluxError as error:
            return self._lacking(error.message, "modprobe -a veth nf_tables nft_fib_inet nft_reject_inet nft_masq")
        return Check(subject=_SUBJECT, ok=True, detail="TCP port lists are enforced and observed", required=False)

    def attach(self, init_pid: int, sandbox_id: str, net_ports: Sequence[int]) -> FlowSource:
        """Connect the network namespace of ``init_pid``, rules in force before the link is up.

        Raises:
            FluxError: ``invalid`` for ports that do not exist; ``unavailable`` if a step failed, with nothing left.
        """
        ports = checked_ports(net_ports)
        if os.geteuid() != 0 or commands.missing_tools():
            check = self.available()
            raise FluxError(Code.UNAVAILABLE, f"cannot allow network ports: {check.detail}; {check.fix}")
        try:
            namespace = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FluxError(Code.UNAVAILABLE, f"cannot connect sandbox {sandbox_id}: {error}") from error
        try:
            with self._locked():
                return self._connect(namespace, sandbox_id, ports)
        except BaseException:
            os.close(namespace)
            raise

    def sweep(self) -> None:
        """Remove what sandboxes left behind whose process was killed.

        Raises:
            FluxError: ``unavailable`` if the rules cannot be listed.
        """
        with self._locked():
            self._sweep(links.Host.now())

    def release(self, link: str) -> None:
        """Remove a sandbox's link and rules from the host."""
        with self._locked():
            links.remove(link)
            self._sweep(links.Host.now())

    def _connect(self, namespace: int, sandbox_id: str, ports: tuple[int, ...]) -> FlowSource:
        host = links.Host.now()
        self._sweep(host)
        place = _free_place(sandbox_id, host.links)
        rules = rulesets.Rules(
            link=_name(place),
            address=_address(place),
            ports=ports,
            host_addresses=host.addresses,
            resolver=links.resolver() if _DNS_PORT in ports else None,
        )
        try:
            links.make_link(rules, namespace)
            self._switch_forwarding_on()
            commands.run("nft", "-f", "-", text=rulesets.outer(rules))
            commands.run("nft", "-f", "-", text=rulesets.inner(rules), namespace=namespace)
            links.bring_up(rules, namespace)
        except BaseException:
            links.remove(rules.link)
            self._sweep(links.Host.now())
            raise
        return _Source(self, rules.link, namespace)

    def _sweep(self, host: links.Host) -> None:
        for table in host.tables - host.links:
            links.remove(table)
        if not host.links and self._forwarding_mark.exists():
            _FORWARD.write_text("0\n")
            self._forwarding_mark.unlink()

    def _switch_forwarding_on(self) -> None:
        if _FORWARD.read_text().strip() != "0":
            return
        try:
            # The mark first: a crash between the two steps must not leave forwarding on unknown to all.
            self._forwarding_mark.touch()
            _FORWARD.write_text("1\n")
        except OSError as error:
            self._forwarding_mark.unlink(missing_ok=True)
            raise FluxError(
                Code.UNAVAILABLE,
                "cannot connect a sandbox: the host does not forward packets and that cannot be switched on: "
                f"{error}; run sysctl -w net.ipv4.ip_forward=1",
            ) from error

    @property
    def _forwarding_mark(self) -> Path:
        return self._directory / "forwarding"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock that all processes take which change links and tables."""
        import fcntl

        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._directory / "network.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FluxError(Code.UNAVAILABLE, f"cannot lock the host's network set-up: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _lacking(self, detail: str, fix: str) -> Check:
        return Check(subject=_SUBJECT, ok=False, detail=detail, fix=fix, required=False)


class _Source:
    """One connected sandbox."""

    def __init__(self, network: VethNetwork, link: str, namespace: int) -> None:
        self._network = network
        self._link = link
        # Keeps the namespace, and with it the counters, when every process in it is dead.
        self._namespace = namespace
        self._lock = threading.Lock()
        self._last: list[Flow] = []

    def flows(self) -> list[Flow]:
        """Return what both tables counted so far."""
        with self._lock:
            if self._namespace >= 0:
                self._last = self._read()
            return list(self._last)

    def close(self) -> None:
        """Read the counters a last time, then remove link and rules."""
        with self._lock:
            if self._namespace < 0:
                return
            try:
                with contextlib.suppress(FluxError):
                    self._last = self._read()
                self._network.release(self._link)
            finally:
                os.close(self._namespace)
                self._namespace = -1

    def _read(self) -> list[Flow]:
        command = ("nft", "-n", "-j", "list", "table", "inet")
        inner = commands.run(*command, rulesets.INNER_TABLE, namespace=self._namespace)
        return rulesets.flows(inner, commands.run(*command, self._link))


def _name(place: int) -> str:
    return f"flux{place:04x}"


def _address(place: int) -> str:
    return f"{_NETWORK}.{place >> 8}.{place & 0xFF}"


def _free_place(sandbox_id: str, taken: frozenset[str]) -> int:
    """Return a free number from 1 to ``_PLACES``, from which link name and address are made."""
    start = zlib.crc32(sandbox_id.encode())
    for step in range(_PLACES):
        place = 1 + (start + step) % _PLACES
        if _name(place) not in taken:
            return place
    raise FluxError(Code.EXHAUSTED, f"cannot connect sandbox {sandbox_id}: {_PLACES} sandboxes are connected already")
