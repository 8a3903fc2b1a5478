"""Sandboxes that may reach TCP ports of any host but this one, or the internet (spec: network). Needs root and ``nft``.

Each sandbox gets a network namespace and a veth pair. Its end has an address of its own from ``10.219.0.0/16``; the
host's end has the address that the sandbox's ``resolv.conf`` names, a route to the sandbox, and a table of rules named
like the link. The rules are in force before either end is up. They allow what the sandbox's reach says and what belongs
to it; everything else is refused at once and counted: other ports, other protocols, IPv6, this host's addresses, cloud
metadata addresses, other sandboxes.

Names are resolved where there is internet access or port 53 is listed: queries to the sandbox's nameserver, over UDP
and TCP, then go to the first IPv4 resolver of the host that is not on its loopback.

The host must forward packets. If it does not yet, ``net.ipv4.ip_forward`` is switched on with the first link and off
again after the last one; a forwarding policy of other rules (a ``DROP`` by a firewall) stays in force and must let the
links named ``flux*`` through.

A daemon has a few links made ahead, each in a namespace that nobody has been in, and takes links down after the answer
(``ahead.py``): what a start and an end wait for is then next to nothing.

Leftovers: a link goes with its namespace, and a table without a link is removed by the next process that starts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.core.policy import checked_ports
from flux.network import commands, links, namespaces, rulesets
from flux.network.ahead import Ahead
from flux.ports.network import Link, Reach
from flux.ports.substrate import Check

_SUBJECT = "network links"
_NETWORK = rulesets.SANDBOX_RANGE.split(".0.0/")[0]
_PLACES = 0xFFFE
_DNS_PORT = 53
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class Request(msgspec.Struct, frozen=True):
    """What a link is made for: every link for an equal one is as good. ``resolver``: the host's, where it is used."""

    reach: Reach
    resolver: str | None


class VethNetwork:
    """Connects sandboxes by veth pairs; see ``ports.network.LinkedNetwork``.

    Args:
        directory: holds the lock between processes and remembers that forwarding was switched on; lost at reboot.
        ahead: how many links to have ready; with 0 everything is done by whoever asks for it, and nothing beside.
    """

    def __init__(self, directory: str = "/run/flux", *, ahead: int = 0) -> None:
        self._directory = Path(directory)
        self._swept = False
        self._ahead: Ahead[Request, _VethLink] | None = None
        if ahead:
            self._ahead = Ahead(ahead, make=self._make, end=self.end)

    def available(self) -> Check:
        """Tell whether this machine can do it: the rights, the programs, and the kernel by a rehearsal of the rules."""
        if os.geteuid() != 0:
            return self._lacking("only root can connect a sandbox to the network", "run Flux with sudo")
        missing = commands.missing_tools()
        if missing:
            return self._lacking(f"not installed: {', '.join(missing)}", "apt-get install nftables")
        if _FORWARD.read_text().strip() == "0" and not os.access(_FORWARD, os.W_OK):
            return self._lacking("the host does not forward packets", "sysctl -w net.ipv4.ip_forward=1")
        reach = Reach(ports=(_DNS_PORT,), internet=True)
        rehearsed = rulesets.Rules(link="flux0000", address=_address(0), reach=reach, resolver="192.0.2.1")
        try:
            commands.nft(rulesets.inner(rehearsed) + rulesets.outer(rehearsed), check=True)
        except FluxError as error:
            return self._lacking(error.message, "modprobe -a veth nf_tables nft_fib_inet nft_reject_inet nft_masq")
        resolver = links.resolver()
        names = f"are resolved by {resolver}" if resolver else "are not: the host has no resolver beyond its loopback"
        detail = f"TCP port lists and internet access are enforced and observed; names {names}"
        return Check(subject=_SUBJECT, ok=True, detail=detail, required=False)

    def connect(self, sandbox_id: str, reach: Reach) -> Link:
        """Return a network namespace for one sandbox; its rules were in force before its link was up.

        Raises:
            FluxError: ``invalid`` for ports that do not exist; ``unavailable`` if a step failed, with nothing left.
        """
        reach = Reach(ports=checked_ports(reach.ports), internet=reach.internet)
        if os.geteuid() != 0 or commands.missing_tools():
            check = self.available()
            raise FluxError(
                Code.UNAVAILABLE, f"cannot connect sandbox {sandbox_id} to the network: {check.detail}; {check.fix}"
            )
        names = reach.internet or _DNS_PORT in reach.ports
        request = Request(reach, links.resolver() if names else None)
        ready = None if self._ahead is None else self._ahead.take(request)
        return ready or self._make(request)

    def sweep(self) -> None:
        """Remove what sandboxes left behind whose process was killed.

        Raises:
            FluxError: ``unavailable`` if the rules cannot be listed.
        """
        if os.geteuid() != 0 or commands.missing_tools():
            return  # nor has anybody made any
        with self._locked():
            self._remove_stray_tables()
            self._settle_forwarding()

    def close(self) -> None:
        """Take down every link that nobody has, and wait for those that are being taken down. Idempotent."""
        if self._ahead is not None:
            self._ahead.close()

    def leave(self, link: _VethLink) -> None:
        """Have a link taken down whose sandbox is dead: now, or soon."""
        if self._ahead is None or not self._ahead.give(link):
            self.end([link])

    def end(self, doomed: Sequence[_VethLink]) -> None:
        """Take links down whose sandboxes are dead, after a last look at their counters."""
        for link in doomed:
            link.look()
        try:
            self._remove([link.name for link in doomed])
        finally:
            for link in doomed:
                link.release()

    def _remove(self, names: Sequence[str]) -> None:
        links.remove(names)
        if not links.names():
            with self._locked():
                self._settle_forwarding()

    def _make(self, request: Request) -> _VethLink:
        try:
            namespace = namespaces.new()
        except OSError as error:
            raise FluxError(Code.UNAVAILABLE, f"cannot make a sandbox's network: {error}") from error
        try:
            return self._connected(request, namespace)
        except BaseException:
            os.close(namespace)
            raise

    def _connected(self, request: Request, namespace: int) -> _VethLink:
        place = self._begin(namespace)
        try:
            rules = rulesets.Rules(
                link=_name(place),
                address=_address(place),
                reach=request.reach,
                host_addresses=links.host_addresses(),
                resolver=request.resolver,
            )
            links.bring_up(rules, namespace)
        except BaseException:
            self._remove([_name(place)])
            raise
        return _VethLink(self, _name(place), namespace)

    def _begin(self, namespace: int) -> int:
        """Make a link, by which its name and address are taken, on a host that forwards."""
        with self._locked():
            if not self._swept:
                self._remove_stray_tables()
            place = _free_place(links.names())
            links.make_pair(_name(place), namespace)
            try:
                self._switch_forwarding_on()
            except BaseException:
                links.remove([_name(place)])
                raise
            return place

    def _remove_stray_tables(self) -> None:
        links.remove_tables(links.tables() - links.names())
        self._swept = True

    def _settle_forwarding(self) -> None:
        if not links.names() and self._forwarding_mark.exists():
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


class _VethLink:
    """One connected sandbox, or one that is to come."""

    def __init__(self, network: VethNetwork, name: str, namespace: int) -> None:
        self.name = name
        self._network = network
        # Keeps the namespace, and with it the counters, when every process in it is dead.
        self._namespace = namespace
        self._lock = threading.Lock()
        self._left = False
        self._last: list[Flow] = []

    @property
    def namespace(self) -> int:
        return self._namespace

    def flows(self) -> list[Flow]:
        """Return what both tables counted so far."""
        with self._lock:
            if self._namespace >= 0:
                self._last = self._read()
            return list(self._last)

    def close(self) -> None:
        """Give the link up; what its counters say stays known."""
        with self._lock:
            left, self._left = self._left, True
        if not left:
            self._network.leave(self)

    def look(self) -> None:
        """Read the counters while they are there; a link that was only ready has nothing to tell."""
        if self._left:
            with contextlib.suppress(FluxError):
                self.flows()

    def release(self) -> None:
        """Let the namespace go; the flows are what they were at the last look."""
        with self._lock:
            namespace, self._namespace = self._namespace, -1
        os.close(namespace)

    def _read(self) -> list[Flow]:
        inner = commands.nft(f"list table inet {rulesets.INNER_TABLE}", namespace=self._namespace, json=True)
        return rulesets.flows(inner, commands.nft(f"list table inet {self.name}", json=True))


def _name(place: int) -> str:
    return f"flux{place:04x}"


def _address(place: int) -> str:
    return f"{_NETWORK}.{place >> 8}.{place & 0xFF}"


def _free_place(taken: set[str]) -> int:
    """Return a free number from 1 to ``_PLACES``, from which link name and address are made; seldom one just left."""
    start = int.from_bytes(os.urandom(2), "big")
    for step in range(_PLACES):
        place = 1 + (start + step) % _PLACES
        if _name(place) not in taken:
            return place
    raise FluxError(Code.EXHAUSTED, f"cannot connect a sandbox: {_PLACES} sandboxes are connected already")
