"""Who drives a row on: its own process, or whoever sees that nobody does (spec: generations, §9)."""

from __future__ import annotations

from flux.control.context import Control, Deadline
from flux.store.registry.sandboxes import SandboxRow


class Watch:
    """One caller's view of a row that somebody else may be driving.

    Two who drive the same row do no harm: they send the same attempt, and every transaction is guarded. So a row of
    another process is taken over when it has not changed for a while as this one saw it; no two clocks are compared.
    """

    def __init__(self, context: Control) -> None:
        self._context = context
        self._version: int | None = None
        self._patience: Deadline | None = None

    def may_drive(self, row: SandboxRow) -> bool:
        """Tell whether it is time to drive the row; within this process ``Flights`` lets only one do so."""
        if row.driver in (None, self._context.process):
            return True
        if self._version != row.version or self._patience is None:
            self._version = row.version
            self._patience = Deadline(self._context.clock, self._context.settings.takeover_seconds)
        return self._patience.is_over
