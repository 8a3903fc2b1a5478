"""What a node has, with the whole record of each sandbox: for a registry that has never heard of it."""

from __future__ import annotations

from flux.core.fence import NodeRow
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox
from flux.engine.node.node import Node, record_of, reference_of
from flux.store import sandboxes


def holdings(node: Node) -> list[tuple[Sandbox, NodeRow, ArtifactReference | None]]:
    """Return record, row and artifact of every sandbox that has a row, oldest first."""
    with node.reading() as tx:
        return [(record_of(tx, row.sandbox_id), row, reference_of(tx, row.artifact_id)) for row in sandboxes.rows(tx)]
