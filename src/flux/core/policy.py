"""What a declared network lets out, for the side-effects report (spec: network)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from flux.core.errors import Code, FluxError

Reach = Literal["blocked", "allow_listed", "unrestricted"]
PORT_MAX = 65535


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """The class of a declaration, and what it allows, in words: CIDRs with ports, names, or bare ports."""

    reach: Reach
    destinations: tuple[str, ...] = ()


BLOCKED = Egress(reach="blocked")
UNRESTRICTED = Egress(reach="unrestricted")


def checked_ports(net_ports: Sequence[int]) -> tuple[int, ...]:
    """Return the allowed TCP ports, sorted, each once.

    Raises:
        FluxError: ``invalid``, naming the ports that do not exist.
    """
    wrong = [port for port in net_ports if not 1 <= port <= PORT_MAX]
    if wrong:
        raise FluxError(
            Code.INVALID,
            f"cannot allow network ports {', '.join(map(str, wrong))}: net_ports holds TCP ports from 1 to {PORT_MAX}",
            {"field": "net_ports", "ports": wrong},
        )
    return tuple(sorted(set(net_ports)))


def classify(network: Literal["none", "ports", "internet"], net_ports: Sequence[int]) -> Egress:
    """Classify a procbox's network: ``none`` and an empty port list let nothing out, ``internet`` has no list."""
    ports = checked_ports(net_ports)
    if network == "internet":
        return UNRESTRICTED
    if network == "none" or not ports:
        return BLOCKED
    return Egress(
        reach="allow_listed",
        destinations=tuple(f"tcp/{port} (port allow-list only, any host)" for port in ports),
    )
