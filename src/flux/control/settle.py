"""Settling: nothing is minted while an outcome is unknown; a teardown makes it known (spec: generations, §7, §9.0)."""

from __future__ import annotations

from flux.control import ask, transitions
from flux.control.calls import Calls, Nap
from flux.control.context import Control, Deadline
from flux.core.lifecycle import ControlEvent
from flux.failpoints import Point
from flux.store.registry.sandboxes import SandboxRow


def settle(context: Control, row: SandboxRow, deadline: Deadline) -> Calls[None]:
    """End whatever runs of a sandbox on its node, accept what that saved, and let it rest."""
    known, saved = yield from ask.settled(context, row, deadline)
    if not known:
        yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)
        return
    if transitions.rest(context, row, ControlEvent.SETTLED, saved, stopped=row.stopped) is not None:
        yield Point.WAKE_SETTLED
