"""Collecting local artifacts: whatever anything refers to stays, rows first and contents after them (§6, I7)."""

from __future__ import annotations

from flux.engine.node.node import Node
from flux.failpoints import Point, Steps
from flux.store import artifact_rows


def steps(node: Node) -> Steps[int]:
    """Remove the local artifacts that nothing refers to.

    Nobody makes or restores an artifact meanwhile; if somebody does already, nothing is done this time.

    Returns:
        Bytes freed.
    """
    if not node.desk.begin_collecting():
        return 0
    try:
        needed = _mark(node)
        yield Point.COLLECT_MARKED
        freed = node.artifacts.keep_only(sorted(needed))
        yield Point.COLLECT_DELETED
        return freed
    finally:
        node.desk.end_collecting()


def _mark(node: Node) -> set[str]:
    """Forget the artifacts that nothing refers to; return the others. What is forgotten is no longer found."""
    with node.writing() as tx:
        needed = artifact_rows.needed(tx)
        for artifact in artifact_rows.every(tx):
            if artifact.id not in needed:
                artifact_rows.delete(tx, artifact.id)
        return needed
