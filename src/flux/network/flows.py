"""A bounded record of what a sandbox tried to reach."""

from __future__ import annotations

from flux.core.changeset import Flow
from flux.network.packets import Attempt

FLOWS_MAX = 256


class RefusedFlows:
    """Counts attempts by destination; the ones that find no room are counted together and shown last.

    Args:
        limit: how many destinations are told apart.
    """

    def __init__(self, limit: int = FLOWS_MAX) -> None:
        self._limit = limit
        self._counts: dict[Attempt, int] = {}
        self._others = 0
        self._lossy = False

    def add(self, attempt: Attempt) -> None:
        """Count one attempt."""
        if attempt in self._counts:
            self._counts[attempt] += 1
        elif len(self._counts) < self._limit:
            self._counts[attempt] = 1
        else:
            self._others += 1

    def lost(self) -> None:
        """Remember that packets may have gone unread, so that the counts are lower bounds."""
        self._lossy = True

    def flows(self) -> list[Flow]:
        """Return the flows in the order of their first attempt, then what is not told apart."""
        flows = [
            Flow(proto=each.proto, dst=each.dst, port=each.port, name=each.name, verdict="refused", connections=count)
            for each, count in self._counts.items()
        ]
        if self._others:
            name = f"other destinations (only the first {self._limit} are listed)"
            flows.append(Flow(proto="ip", dst="", name=name, verdict="refused", connections=self._others))
        if self._lossy:
            name = "unrecorded packets (sent faster than they could be read; all counts are lower bounds)"
            flows.append(Flow(proto="ip", dst="", name=name, verdict="refused"))
        return flows
