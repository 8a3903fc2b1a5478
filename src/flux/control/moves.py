"""Drives a sandbox's row on until it rests: whatever it is in the middle of is in the row (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from flux.control import activate, settle, suspend, transitions
from flux.control.calls import Calls
from flux.control.context import Control, Deadline
from flux.core.lifecycle import ControlState
from flux.store.registry.sandboxes import SandboxRow

#: One step: asks the node and moves the row by its answer, or returns at the deadline.
Step = Callable[[Control, SandboxRow, Deadline], Calls[None]]

_STEPS: Mapping[ControlState, Step] = {
    ControlState.WAKING: activate.start,
    ControlState.SETTLING: settle.settle,
    ControlState.PAUSING: suspend.suspend,
}


class Advanced(msgspec.Struct, frozen=True):
    """What came of it. ``row``: as it is afterwards, ``None`` if it is gone, or was somebody else's to drive."""

    driven: bool
    row: SandboxRow | None = None


NOT_DRIVEN = Advanced(False)


def advance(context: Control, row: SandboxRow, deadline: Deadline, *, fresh: bool = False) -> Calls[Advanced]:
    """Drive a row until it rests or the time is over, unless somebody in this process does so already.

    ``fresh``: the caller has just written the row; otherwise it is read again first.
    """
    if not context.flights.take(row.id):
        return NOT_DRIVEN
    try:
        current = row if fresh else context.row(row.id)
        while current is not None and transitions.is_moving(current.state) and not deadline.is_over:
            transitions.take(context, current)
            yield from _STEPS[current.state](context, current, deadline)
            current = context.row(row.id)
    finally:
        context.flights.release(row.id)
        context.changed(row.id)
    return Advanced(True, current)
