"""Which substrate runs which kind of sandbox."""

from __future__ import annotations

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.engine.context import Context
from flux.ports.substrate import Substrate


def substrate(context: Context, kind: str) -> Substrate:
    """Return the substrate of a kind.

    Raises:
        FluxError: ``invalid`` if there is none.
    """
    found = context.substrates.get(kind)
    if found is None:
        known = ", ".join(sorted(context.substrates)) or "none"
        raise FluxError(
            Code.INVALID,
            f"cannot run a sandbox of the kind {paths.printable(kind)[:80]!r}: the kinds here are {known}",
            {"field": "kind", "known": sorted(context.substrates)},
        )
    return found
