"""nftables rules of a sandbox that may reach something, as text, and what their counters say, as flows.

Two tables hold one sandbox: one in its own network namespace, which refuses at once and counts destinations, and one on
the host, which the sandbox's packets meet even if the first one failed. What both refuse or allow is decided from the
same values, so they cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from flux.core.changeset import Flow
from flux.ports.network import NAMESERVER, Reach

#: Where a sandbox's own address is from: 65 534 sandboxes to a host.
SANDBOX_RANGE = "10.219.0.0/16"
#: Destinations that no list of ports opens: this host, this link (cloud metadata too), groups, other sandboxes, and the
#: metadata addresses of clouds that have them elsewhere.
FORBIDDEN = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "192.0.0.0/24",
    "224.0.0.0/3",
    "100.100.100.200",
    "168.63.129.16",
    SANDBOX_RANGE,
)
#: Destinations that internet access does not open, as they are not the internet: private and shared address space, and
#: the one for benchmarks.
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15")
INNER_TABLE = "flux"

_DESTINATIONS_MAX = 1024
_DNS_PORT = 53
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}
_ALLOWED_SETS = ("allowed", "allowed_portless")
_REFUSED_SETS = ("refused", "refused_v6", "refused_portless", "refused_portless_v6")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What both tables are written from.

    ``link``: the host's end, also the name of the host's table. ``address``: the sandbox's. ``reach``: what is allowed.
    ``host_addresses``: the host's own, at this time. ``resolver``: where port 53 of the sandbox's nameserver leads, if
    it is allowed and the host has a resolver that can be reached from there.
    """

    link: str
    address: str
    reach: Reach
    host_addresses: tuple[str, ...] = ()
    resolver: str | None = None


def inner(rules: Rules) -> str:
    """Return the table for the sandbox's own namespace."""
    query = f"{_query(NAMESERVER)} ct state new jump allow" if rules.resolver else ""
    return f"""
table inet {INNER_TABLE} {{
{_counted(rules)}
    chain allow {{
        counter name allowed_total
        update @allowed {{ meta l4proto . ip daddr . th dport counter }}
        accept
    }}
    chain allow_portless {{
        counter name allowed_total
        update @allowed_portless {{ meta l4proto . ip daddr counter }}
        accept
    }}
    chain count_ports {{
        update @refused {{ meta l4proto . ip daddr . th dport counter }}
        update @refused_v6 {{ meta l4proto . ip6 daddr . th dport counter }}
    }}
    chain count_portless {{
        update @refused_portless {{ meta l4proto . ip daddr counter }}
        update @refused_portless_v6 {{ meta l4proto . ip6 daddr counter }}
    }}
    chain refuse {{
        counter name refused_total
        meta l4proto {{ tcp, udp, sctp }} jump count_ports
        meta l4proto != {{ tcp, udp, sctp }} jump count_portless
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }}
    chain output {{
        type filter hook output priority filter; policy drop;
        oifname "lo" accept
        ct state established,related accept
        icmpv6 type {{ 130-137, 143 }} drop
        meta l4proto igmp drop
        {query}
        ip daddr @forbidden jump refuse
        {_let_out(rules, "ct state new jump allow", "ct state new jump allow_portless")}
        jump refuse
    }}
    chain input {{
        type filter hook input priority filter; policy drop;
        iifname "lo" accept
        ct state established,related accept
    }}
}}
"""


def _counted(rules: Rules) -> str:
    """Return what the sandbox's own table counts in, and what no port opens."""
    return f"""
    counter allowed_total {{ }}
    counter refused_total {{ }}
    set forbidden {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {_addresses(rules)} }}; }}
    set allowed {{ type inet_proto . ipv4_addr . inet_service; size {_DESTINATIONS_MAX}; flags dynamic; }}
    set allowed_portless {{ type inet_proto . ipv4_addr; size {_DESTINATIONS_MAX}; flags dynamic; }}
    set refused {{ type inet_proto . ipv4_addr . inet_service; size {_DESTINATIONS_MAX}; flags dynamic; }}
    set refused_v6 {{ type inet_proto . ipv6_addr . inet_service; size {_DESTINATIONS_MAX}; flags dynamic; }}
    set refused_portless {{ type inet_proto . ipv4_addr; size {_DESTINATIONS_MAX}; flags dynamic; }}
    set refused_portless_v6 {{ type inet_proto . ipv6_addr; size {_DESTINATIONS_MAX}; flags dynamic; }}"""


def outer(rules: Rules) -> str:
    """Return the table for the host's namespace; it concerns packets from and to the sandbox's link only."""
    asked = f"{_query(NAMESERVER)} return" if rules.resolver else ""
    redirect = f'iifname "{rules.link}" {_query(NAMESERVER)} dnat ip to {rules.resolver}' if rules.resolver else ""
    asking = f"{_query(rules.resolver)} ct status dnat accept" if rules.resolver else ""
    return f"""
table inet {rules.link} {{
    set forbidden {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {", ".join(FORBIDDEN)} }}; }}
    set refused {{ type ipv4_addr . inet_service; size {_DESTINATIONS_MAX}; flags dynamic; }}
    chain refuse {{
        update @refused {{ ip daddr . tcp dport counter }}
        meta l4proto tcp reject with tcp reset
        drop
    }}
    chain arrive {{
        type filter hook prerouting priority raw; policy accept;
        iifname != "{rules.link}" accept
        ip saddr != {rules.address} drop
        {asked}
        ip daddr @forbidden jump refuse
        fib daddr type != unicast jump refuse
    }}
    chain resolve {{
        type nat hook prerouting priority dstnat; policy accept;
        {redirect}
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname != "{rules.link}" accept
        {asking}
        drop
    }}
    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname "{rules.link}" jump leave
        oifname "{rules.link}" ct state established,related accept
        oifname "{rules.link}" drop
    }}
    chain leave {{
        {asking}
        {_let_out(rules, "accept", "accept")}
        jump refuse
    }}
    chain translate {{
        type nat hook postrouting priority srcnat; policy accept;
        iifname "{rules.link}" masquerade
    }}
}}
"""


def _query(server: str) -> str:
    return f"ip daddr {server} meta l4proto {{ tcp, udp }} th dport {_DNS_PORT}"


def _let_out(rules: Rules, verdict: str, portless: str) -> str:
    """Return the rules for what may leave, once nothing forbidden is left; what they do not let out is refused next."""
    lines = []
    if rules.reach.ports:
        lines.append(f"meta nfproto ipv4 tcp dport {{ {', '.join(map(str, rules.reach.ports))} }} {verdict}")
    if rules.reach.internet:
        lines += [
            f"ip daddr {{ {', '.join(PRIVATE)} }} jump refuse",
            f"meta nfproto ipv4 meta l4proto {{ tcp, udp }} {verdict}",
            f"icmp type echo-request {portless}",
        ]
    return "\n        ".join(lines)


def _addresses(rules: Rules) -> str:
    return ", ".join((*FORBIDDEN, *rules.host_addresses))


def flows(inner_json: str, outer_json: str) -> list[Flow]:
    """Return the flows that both tables counted, allowed ones first.

    Args:
        inner_json: ``nft -n -j list table`` of the sandbox's table.
        outer_json: the same of the host's; a destination that only the host refused was let go by the sandbox's.
    """
    here, host = _Listing(inner_json), _Listing(outer_json)
    later = {(dst, port): count for (_, dst, port), count in host.counts("refused", proto=6)}
    allowed = {each: count for name in _ALLOWED_SETS for each, count in here.counts(name)}
    refused = {each: count for name in _REFUSED_SETS for each, count in here.counts(name)}
    untold_allowed = here.total("allowed_total") - sum(allowed.values())
    untold_refused = here.total("refused_total") - sum(refused.values())
    for (dst, port), count in later.items():
        refused[6, dst, port] = refused.get((6, dst, port), 0) + count
        if (6, dst, port) in allowed:
            allowed[6, dst, port] -= count
    return [
        *_flows(allowed, "allowed"),
        *_others(untold_allowed, "allowed"),
        *_flows(refused, "refused"),
        *_others(untold_refused, "refused"),
    ]


def _flows(counts: dict[tuple[int, str, int | None], int], verdict: Any) -> Iterator[Flow]:
    for (number, dst, port), count in sorted(counts.items(), key=lambda item: str(item[0])):
        if count > 0:
            proto = _PROTOCOLS.get(number, f"ip-{number}")
            yield Flow(proto=proto, dst=dst, port=port, verdict=verdict, connections=count)


def _others(count: int, verdict: Any) -> Iterable[Flow]:
    if count <= 0:
        return []
    name = f"other destinations (only {_DESTINATIONS_MAX} of a kind are listed)"
    return [Flow(proto="ip", dst="", name=name, verdict=verdict, connections=count)]


class _Listing:
    """The objects of one table, as ``nft -j`` lists them."""

    def __init__(self, text: str) -> None:
        self._objects = json.loads(text)["nftables"]

    def counts(self, name: str, proto: int | None = None) -> Iterator[tuple[tuple[int, str, int | None], int]]:
        """Yield ``((protocol, address, port), packets)`` of a set; ``proto`` where the set holds none."""
        for each in self._named("set", name).get("elem", ()):
            concat = each["elem"]["val"]["concat"]
            number, dst, *port = concat if proto is None else (proto, *concat)
            yield (number, dst, port[0] if port else None), each["elem"]["counter"]["packets"]

    def total(self, name: str) -> int:
        """Return how many packets a named counter saw."""
        return int(self._named("counter", name)["packets"])

    def _named(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each[kind] for each in self._objects if each.get(kind, {}).get("name") == name)
        return found
