"""What running sandboxes used lately: a bounded ring of samples for each, in memory (spec: e2b, E9)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

import msgspec

#: How often a daemon takes one, and how many it keeps: half an hour of each sandbox, about 100 kB.
EVERY_SECONDS = 5.0
KEPT = 360


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a sandbox used at a moment. ``at`` in wall-clock seconds since the epoch, sizes in bytes.

    ``cpu_used_pct``: of all the ``cpu_count`` processors that it may use, since the sample before; 0 to 100.
    ``memory_used``: without ``memory_cache``, which the kernel gives back when it is needed.
    """

    at: float
    generation: int
    cpu_count: float
    cpu_used_pct: float
    memory_used: int
    memory_total: int
    memory_cache: int
    disk_used: int
    disk_total: int


class Meter:
    """Keeps the samples of this process's sandboxes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, deque[Sample]] = {}

    def add(self, sandbox_id: str, sample: Sample) -> None:
        """Keep a sample; the oldest goes."""
        with self._lock:
            self._rings.setdefault(sandbox_id, deque(maxlen=KEPT)).append(sample)

    def between(self, sandbox_id: str, start: float | None, end: float | None) -> list[Sample]:
        """Return a sandbox's samples, oldest first, from ``start`` to ``end`` inclusive; ``None``: no bound."""
        with self._lock:
            kept = list(self._rings.get(sandbox_id, ()))
        return [
            sample for sample in kept if (start is None or sample.at >= start) and (end is None or sample.at <= end)
        ]

    def sandboxes(self) -> list[str]:
        """Return whose samples are kept."""
        with self._lock:
            return list(self._rings)

    def forget(self, sandbox_ids: Collection[str]) -> None:
        """Drop the samples of sandboxes that are gone."""
        with self._lock:
            for sandbox_id in sandbox_ids:
                self._rings.pop(sandbox_id, None)
