"""The direct placement: nodes known by address, the best one first (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flux.core.control import NodeStatus
from flux.ports.placement import Wanted


class DirectPlacement:
    """Implements ``ports.placement.Placement``.

    Args:
        identity: makes a new random identity.
    """

    def __init__(self, identity: Callable[[], str]) -> None:
        self._identity = identity

    def candidates(self, wanted: Wanted, nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
        """Return first the node that has the artifact, then by who answers, runs least and has most space."""
        fitting = [
            node
            for node in nodes
            if node.forgotten_at is None
            and wanted.kind in node.kinds
            and wanted.confined_to in (None, node.node_store_id)
        ]
        return sorted(
            fitting,
            key=lambda node: (
                not node.reachable,
                node.node_store_id != wanted.local_to,
                node.running,
                -node.disk_free,
                node.name,
            ),
        )

    def reserve(self, sandbox_id: str, node: NodeStatus) -> str:
        """Return a fresh identity: a process's, as there is no pod."""
        return self._identity()
