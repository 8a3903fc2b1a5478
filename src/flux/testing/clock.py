"""A clock that stands still until it is told to move."""

from __future__ import annotations

SECOND_NS = 1_000_000_000


class FakeClock:
    """Implements ``ports.clock.Clock``.

    Args:
        wall: the first wall-clock time, in seconds since the epoch.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._boot_ns = 1_000 * SECOND_NS
        self._boots = 1

    def wall(self) -> float:
        """Return the wall-clock time."""
        return self._wall

    def boot_ns(self) -> int:
        """Return nanoseconds since the boot."""
        return self._boot_ns

    def boot_id(self) -> str:
        """Return the identity of the boot."""
        return f"boot-{self._boots}"

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._wall += seconds
        self._boot_ns += int(seconds * SECOND_NS)

    def set_wall(self, wall: float) -> None:
        """Set the wall clock, as an administrator would; the boot clock runs on."""
        self._wall = wall

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Boot again after ``down_seconds``: the boot clock starts anew under a new identity."""
        self._wall += down_seconds
        self._boot_ns = 0
        self._boots += 1
