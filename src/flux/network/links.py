"""The host's end of sandboxes' links: what is there, making one, removing one."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

import msgspec

from flux.core.errors import FluxError
from flux.network import commands, rulesets
from flux.ports.network import NAMESERVER, SINK_ADDRESS_V6, SINK_PREFIX_V6

_LINK = re.compile(r"flux[0-9a-f]{4}")
_INNER_LINK = "eth0"
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


class Host(msgspec.Struct, frozen=True):
    """The host's side at one time: names of links and of tables that are Flux's, and all of its addresses."""

    links: frozenset[str]
    tables: frozenset[str]
    addresses: tuple[str, ...]

    @classmethod
    def now(cls) -> Host:
        """Ask the kernel."""
        interfaces = json.loads(commands.run("ip", "-j", "addr", "show"))
        tables = json.loads(commands.run("nft", "-j", "list", "tables"))["nftables"]
        names = {each["table"]["name"] for each in tables if each.get("table", {}).get("family") == "inet"}
        addresses = {
            address["local"]
            for each in interfaces
            for address in each.get("addr_info", ())
            if address["family"] == "inet" and not address["local"].startswith("127.")
        }
        return cls(
            frozenset(filter(_LINK.fullmatch, (each["ifname"] for each in interfaces if "ifname" in each))),
            frozenset(filter(_LINK.fullmatch, names)),
            tuple(sorted(addresses)),
        )


def resolver() -> str | None:
    """Return the host's first IPv4 resolver that another namespace can reach."""
    for file in _RESOLVERS:
        with contextlib.suppress(OSError):
            for address in re.findall(r"^\s*nameserver\s+([0-9.]+)\s*$", file.read_text(), re.MULTILINE):
                if not address.startswith("127."):
                    return str(address)
    return None


def make_link(rules: rulesets.Rules, namespace: int) -> None:
    """Make the pair, both ends down, the inner one in the sandbox's namespace."""
    target = f"/proc/{os.getpid()}/fd/{namespace}"
    commands.run("ip", "link", "add", rules.link, "type", "veth", "peer", "name", _INNER_LINK, "netns", target)
    # No IPv6 on the host's end at all, not even a link-local address.
    switch = Path(f"/proc/sys/net/ipv6/conf/{rules.link}/disable_ipv6")
    with contextlib.suppress(FileNotFoundError):
        switch.write_text("1\n")


def bring_up(rules: rulesets.Rules, namespace: int) -> None:
    """Give both ends addresses, routes and life."""
    inside = f"""
        link set lo up
        addr add {rules.address}/32 dev {_INNER_LINK}
        link set {_INNER_LINK} up
        route add {NAMESERVER}/32 dev {_INNER_LINK}
        route replace default via {NAMESERVER} dev {_INNER_LINK}
    """
    outside = f"""
        addr add {NAMESERVER}/32 dev {rules.link} scope link
        link set {rules.link} up
        route add {rules.address}/32 dev {rules.link}
    """
    # A default route for IPv6 lets attempts reach the rules, which refuse and count them. Without IPv6 in the kernel
    # these steps fail, and there is nothing to count.
    inside_v6 = f"""
        addr add {SINK_ADDRESS_V6}/{SINK_PREFIX_V6} dev {_INNER_LINK} nodad
        route replace default dev {_INNER_LINK}
    """
    commands.run("ip", "-batch", "-", text=outside)
    commands.run("ip", "-batch", "-", text=inside, namespace=namespace)
    with contextlib.suppress(FluxError):
        commands.run("ip", "-6", "-force", "-batch", "-", text=inside_v6, namespace=namespace)


def remove(link: str) -> None:
    """Remove a link and its table, whichever there is; a sandbox's end goes with the host's."""
    for command in (("ip", "link", "del", link), ("nft", "delete", "table", "inet", link)):
        with contextlib.suppress(FluxError):
            commands.run(*command)
