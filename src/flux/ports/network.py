"""How a sandbox's network is refused, filtered and observed (spec: network).

A substrate makes the network namespace; what reads its packets or filters its traffic is handed in, so that
substrates and network code need not know each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from flux.core.changeset import Flow
from flux.ports.substrate import Check

#: The resolver that a sandbox's ``/etc/resolv.conf`` names: Flux's own, on the far side of the sandbox's only link.
NAMESERVER: Final = "169.254.77.1"

#: Addresses of the device that leads nowhere, inside a sandbox without network. MTU in bytes.
SINK_DEVICE: Final = "tun0"
SINK_ADDRESS_V4: Final = "169.254.77.2"
SINK_PREFIX_V4: Final = 24
SINK_ADDRESS_V6: Final = "fd00:f1:77::2"
SINK_PREFIX_V6: Final = 64
SINK_MTU: Final = 1500


class FlowSource(Protocol):
    """The record of one sandbox's network, for as long as the sandbox lives."""

    def flows(self) -> list[Flow]:
        """Return what was seen so far, one entry per protocol, destination, port and verdict."""
        ...

    def close(self) -> None:
        """Stop recording and release what it holds. Idempotent; ``flows`` still answers afterwards."""
        ...


class PacketSink(Protocol):
    """Refuses everything a sandbox without network sends, and records it."""

    def attach(self, descriptor: int) -> FlowSource:
        """Read IP packets from a TUN descriptor (``IFF_TUN | IFF_NO_PI``) until closed.

        Takes the descriptor over: it is closed with the returned source, also when ``attach`` raises.
        """
        ...


class PortNetwork(Protocol):
    """Lets a sandbox reach TCP ports of an allow-list, any host but this one, and nothing else."""

    def available(self) -> Check:
        """Tell whether this machine can do it."""
        ...

    def attach(self, init_pid: int, sandbox_id: str, net_ports: Sequence[int]) -> FlowSource:
        """Connect the network namespace of ``init_pid``, rules in force before the link is up.

        Raises:
            FluxError: ``unavailable`` if a step failed; nothing is left behind then.
        """
        ...
