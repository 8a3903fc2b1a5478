"""A node as the control plane sees it: in this process, or behind gRPC (spec: generations, §5–§8).

Every method raises ``FluxError``. A refusal or a definite failure carries the node's details
(``details["node_store_id"]`` and ``["reason"]``); ``unknown_outcome`` means that nobody knows: time-out, lost
connection, an error without those details.
"""

from __future__ import annotations

from typing import Protocol

from flux.core.node import (
    Activate,
    Activated,
    Capture,
    Captured,
    Described,
    Destroy,
    Destroyed,
    Evict,
    Inventoried,
    Inventory,
    Listed,
    Stop,
    Stopped,
    Suspend,
    Suspended,
    TearDown,
    TornDown,
)


class Node(Protocol):
    """One node's manager."""

    def activate(self, request: Activate) -> Activated:
        """Create or Start: see ``engine.node.activate``."""
        ...

    def suspend(self, request: Suspend) -> Suspended:
        """Save an execution and end it."""
        ...

    def stop(self, request: Stop) -> Stopped:
        """End an execution without saving it."""
        ...

    def tear_down(self, request: TearDown) -> TornDown:
        """End a generation; it never starts on this node afterwards."""
        ...

    def evict(self, request: Evict) -> None:
        """Delete an idle, backed-up sandbox from this node's disk."""
        ...

    def destroy(self, request: Destroy) -> Destroyed:
        """End everything of a sandbox, for ever."""
        ...

    def capture(self, request: Capture) -> Captured:
        """Take a snapshot of a running execution."""
        ...

    def inventory(self, request: Inventory) -> Inventoried:
        """Take the control plane's facts into account and report."""
        ...

    def list(self) -> Listed:
        """Report every row and artifact."""
        ...

    def describe(self) -> Described:
        """Tell which node this is."""
        ...
