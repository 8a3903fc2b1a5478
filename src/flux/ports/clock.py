"""Time as a port, so that tests own it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time for people and across boots; boot time for measuring within one boot."""

    def wall(self) -> float:
        """Return seconds since the epoch."""
        ...

    def boot_ns(self) -> int:
        """Return nanoseconds since this machine booted, suspend included."""
        ...

    def boot_id(self) -> str:
        """Return the identity of this boot."""
        ...
