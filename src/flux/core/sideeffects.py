"""The side-effects report: what apply reproduces, and what happened, or may have, for real (spec: speculation)."""

from __future__ import annotations

from collections.abc import Sequence

from flux.core.changeset import Flow, SideEffects
from flux.core.policy import Egress

UNKNOWN = "external effects are unknown"


def report(egress: Egress, *, enforced: bool, observed: Sequence[Flow] | None, changes: int, place: str) -> SideEffects:
    """Build the report of one run; it never claims more than is known.

    Args:
        egress: the class of the network that was declared for the run.
        enforced: whether the kernel held the run to it.
        observed: the flows that the kernel saw; ``None`` where nothing could watch.
        changes: how many file changes the changeset holds.
        place: the workspace as the sandbox names it ("/work").
    """
    return SideEffects(
        egress=egress.reach,
        enforced=enforced,
        destinations=list(egress.destinations),
        observed=None if observed is None else list(observed),
        replayable=replayable(changes, place),
        non_replayable=_possible(egress, enforced) if observed is None else _happened(observed),
    )


def replayable(changes: int, place: str) -> list[str]:
    """Return what an apply of so many file changes reproduces, in words."""
    return [f"{changes} file {'change' if changes == 1 else 'changes'} under {place}"] if changes else []


def _happened(observed: Sequence[Flow]) -> list[str]:
    return [
        f"{flow.connections} {_unit(flow)} to {destination(flow)}: happened, never replayed"
        for flow in observed
        if flow.verdict == "allowed"
    ]


def _possible(egress: Egress, enforced: bool) -> list[str]:
    if egress.reach == "unrestricted":
        return [UNKNOWN]
    lines = [f"possible traffic to {target}: recorded, never replayed" for target in egress.destinations]
    if not enforced:
        lines.append(f"the declared network was not enforced: {UNKNOWN}")
    return lines


def _unit(flow: Flow) -> str:
    return "connection(s)" if flow.proto == "tcp" else f"{flow.proto} packet(s)"


def destination(flow: Flow) -> str:
    """Name where a flow went, for people: ``host:port``, IPv6 addresses in brackets."""
    host = flow.name or flow.dst
    if flow.port is None:
        return host
    return f"[{host}]:{flow.port}" if ":" in host else f"{host}:{flow.port}"
