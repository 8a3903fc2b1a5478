"""The host's end of sandboxes' links: what is there, making one, removing one."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

from flux.core.errors import FluxError
from flux.network import commands, namespaces, rulesets
from flux.network.netlink import Netlink
from flux.ports.network import NAMESERVER, SINK_ADDRESS_V6, SINK_PREFIX_V6

_LINK = re.compile(r"flux[0-9a-f]{4}")
_INNER_LINK = "eth0"
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_ROUTES = Path("/proc/thread-self/net/fib_trie")
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_IPV6 = Path("/proc/sys/net/ipv6")


def names() -> set[str]:
    """Return the names of all links that are Flux's; this is also how their tables are named."""
    return set(filter(_LINK.fullmatch, (name for _, name in socket.if_nameindex())))


def tables() -> set[str]:
    """Return the names of all tables that are Flux's. Raises ``FluxError`` ``unavailable``."""
    listed = json.loads(commands.nft("list tables", json=True))["nftables"]
    found = (each["table"]["name"] for each in listed if each.get("table", {}).get("family") == "inet")
    return set(filter(_LINK.fullmatch, found))


def host_addresses() -> tuple[str, ...]:
    """Return the host's own addresses, its loopback's aside."""
    found = set(_LOCAL.findall(_ROUTES.read_text(encoding="ascii")))
    return tuple(sorted(address for address in found if not address.startswith("127.") and address != NAMESERVER))


def resolver() -> str | None:
    """Return the host's first IPv4 resolver that another namespace can reach."""
    for file in _RESOLVERS:
        with contextlib.suppress(OSError):
            for address in re.findall(r"^\s*nameserver\s+([0-9.]+)\s*$", file.read_text(), re.MULTILINE):
                if not address.startswith("127."):
                    return str(address)
    return None


def make_pair(link: str, namespace: int) -> None:
    """Make the pair, both ends down, the inner one in the sandbox's namespace."""
    with Netlink() as kernel:
        kernel.add_pair(link, _INNER_LINK, namespace)
    # No IPv6 on the host's end at all, not even a link-local address.
    with contextlib.suppress(FileNotFoundError):
        (_IPV6 / "conf" / link / "disable_ipv6").write_text("1\n")


def bring_up(rules: rulesets.Rules, namespace: int) -> None:
    """Put the rules in force on both sides; then give both ends addresses, routes and life."""
    afresh = f"table inet {rules.link}\ndelete table inet {rules.link}\n"
    commands.nft(afresh + rulesets.outer(rules))
    commands.nft(rulesets.inner(rules), namespace=namespace)
    with Netlink() as kernel:
        kernel.add_address(rules.link, NAMESERVER, 32, on_link=True)
        kernel.up(rules.link)
        kernel.add_route(rules.link, rules.address)
    namespaces.inside(namespace, lambda: _bring_up_inner(rules))


def _bring_up_inner(rules: rulesets.Rules) -> None:
    with Netlink() as kernel:
        kernel.up("lo")
        kernel.add_address(_INNER_LINK, rules.address, 32)
        kernel.up(_INNER_LINK)
        kernel.add_route(_INNER_LINK, NAMESERVER)
        kernel.add_default(_INNER_LINK, NAMESERVER)
        # A default route for IPv6 lets attempts reach the rules, which refuse and count them. Without IPv6 in the
        # kernel these steps fail, and there is nothing to count.
        with contextlib.suppress(FluxError):
            kernel.add_address(_INNER_LINK, SINK_ADDRESS_V6, SINK_PREFIX_V6)
            kernel.add_default(_INNER_LINK, None)


def remove(doomed: Sequence[str]) -> None:
    """Remove links and their tables, whichever there are; a sandbox's end goes with the host's.

    A name counts as taken until its link is gone, which comes last. Before its rules go, nothing passes a link.

    Raises:
        FluxError: ``unavailable`` if a link is still there.
    """
    with Netlink() as kernel:
        for link in doomed:
            with contextlib.suppress(FluxError):
                kernel.down(link)
        remove_tables(doomed)
        kernel.delete(doomed)


def remove_tables(doomed: Collection[str]) -> None:
    """Remove those of the tables that there are."""
    if doomed:
        commands.nft("".join(f"table inet {name}\ndelete table inet {name}\n" for name in doomed))
