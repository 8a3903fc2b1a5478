"""How long nothing may pass before a connection is cut."""

from __future__ import annotations

from anyio import CancelScope, current_time


class Idle:
    """Cancels what is done in its ``scope`` when nothing has passed for too long.

    Args:
        seconds: how long nothing may.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.scope = CancelScope(deadline=current_time() + seconds)

    def touch(self) -> None:
        """Note that something passed."""
        self.scope.deadline = current_time() + self._seconds

    @property
    def over(self) -> bool:
        """Whether nothing passed for too long."""
        return self.scope.cancelled_caught
