"""How a sandbox's network is refused, filtered and observed (spec: network).

A substrate makes the network namespace; what reads its packets or filters its traffic is handed in, so that
substrates and network code need not know each other.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

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


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox with a network may reach, never this host or another sandbox.

    ``ports``: of any host, over TCP. ``internet``: any public address, over TCP, UDP and ICMP echo, and names.
    """

    ports: tuple[int, ...] = ()
    internet: bool = False


class Link(FlowSource, Protocol):
    """The connection of one sandbox; its rules are in force, and it is up."""

    @property
    def namespace(self) -> int:
        """A descriptor of the network namespace to start the sandbox in; the link's own, open until ``close``."""
        ...


class LinkedNetwork(Protocol):
    """Lets sandboxes reach what they may, and nothing else."""

    def available(self) -> Check:
        """Tell whether this machine can do it."""
        ...

    def connect(self, sandbox_id: str, reach: Reach) -> Link:
        """Return a network namespace for one sandbox, which nobody else has or had.

        Raises:
            FluxError: ``invalid`` for ports that do not exist; ``unavailable`` or ``exhausted`` if a step failed;
                nothing is left behind then.
        """
        ...

    def sweep(self) -> None:
        """Remove what processes left behind that were killed.

        Raises:
            FluxError: ``unavailable`` if that cannot be found out.
        """
        ...

    def close(self) -> None:
        """Release what no sandbox has, and wait for what closed links still hold. Idempotent."""
        ...
