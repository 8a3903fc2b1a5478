"""The machine's own clock."""

from __future__ import annotations

import time

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class SystemClock:
    """``ports.clock.Clock`` for real."""

    def __init__(self) -> None:
        self._boot_id: str | None = None

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def boot_ns(self) -> int:
        """Return nanoseconds since this machine booted, suspend included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return the kernel's identity of this boot; empty where ``/proc`` does not say it."""
        if self._boot_id is None:
            try:
                with open(_BOOT_ID, encoding="ascii") as stream:  # noqa: PTH123 - pathlib is slow to import
                    self._boot_id = stream.read().strip()
            except OSError:
                self._boot_id = ""
        return self._boot_id
