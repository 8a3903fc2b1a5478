"""Where a sandbox may run: which nodes, in which order, and under which identity (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from flux.core.control import NodeStatus


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed.

    ``confined_to``: the store id of the only node that can have it, for a bound directory or an artifact that the
    object store does not have. ``local_to``: the store id of the node where its artifact lies, which spares a download.
    """

    sandbox_id: str
    kind: str
    confined_to: str | None = None
    local_to: str | None = None


class Placement(Protocol):
    """Chooses among nodes. The direct one knows them by address; another may ask a scheduler."""

    def candidates(self, wanted: Wanted, nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
        """Return the nodes to try, best first; none if no node may have it."""
        ...

    def reserve(self, sandbox_id: str, node: NodeStatus) -> str:
        """Return the identity of the holder of the next execution (the pod UID of the route evidence), a fresh one."""
        ...
