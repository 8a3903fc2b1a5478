"""All routes for E2B's SDKs that are about sandboxes, not in them (spec: e2b, §3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flux.api.e2b import life, listing, observe, snapshots, surroundings, unsupported
from flux.api.e2b.endpoint import Resource, Row

if TYPE_CHECKING:
    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads

_ROWS: tuple[Row, ...] = (
    *life.ROWS,
    *listing.ROWS,
    *snapshots.ROWS,
    *surroundings.ROWS,
    *unsupported.ROWS,
)


def resources(gate: Gate, threads: Threads, domain: str | None) -> Iterable[tuple[str, Resource]]:
    """Return what answers at each path; a path that stands earlier goes first."""
    paths: dict[str, list[Row]] = {}
    # The metrics of several sandboxes stand where a route has one sandbox's id.
    for row in (*observe.rows(gate.forwarder), *_ROWS):
        paths.setdefault(row.path, []).append(row)
    return [(path, Resource(gate, threads, rows, domain)) for path, rows in paths.items()]
