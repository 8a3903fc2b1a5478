"""What a daemon tells of itself: at ``/metrics`` for Prometheus, and in its log (spec: sandboxes)."""

from __future__ import annotations

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flux.api.rest.guard import Finished

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Names that begin so are counted under one name, by what follows.
_FAMILIES = {
    "changeset": ("flux_changesets", "Changesets by state they came into", "state"),
    "fence": ("flux_fences", "Calls that a node refused, by reason", "reason"),
    "upload": ("flux_uploads", "Tries at uploading an artifact", "outcome"),
}
_COUNTED = {
    "conflicts": "Applies that met a conflict",
    "staged_bytes": "Bytes staged in changesets",
    "uploaded_bytes": "Bytes sent to the object store",
}
_GAUGED = {"live_sandboxes": "Sandboxes that run"}


class Metrics:
    """Implements ``ports.observer.Observer`` by counting. A name that it does not know is counted as an event."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._operations = Counter("flux_operations", "Operations", ["operation", "outcome"], registry=registry)
        self._seconds = Histogram(
            "flux_operation_seconds", "Latency of operations", ["operation"], buckets=_SECONDS, registry=registry
        )
        self._requests = Counter(
            "flux_requests", "Requests over HTTP, refused ones too", ["operation", "status"], registry=registry
        )
        self._families = {
            family: Counter(name, text, [label], registry=registry) for family, (name, text, label) in _FAMILIES.items()
        }
        self._events = Counter("flux_events", "What else happened", ["event"], registry=registry)
        self._counters = {name: Counter(f"flux_{name}", text, registry=registry) for name, text in _COUNTED.items()}
        self._gauges = {name: Gauge(f"flux_{name}", text, registry=registry) for name, text in _GAUGED.items()}

    def operation(self, name: str, outcome: str, seconds: float) -> None:
        """Count an operation that ended."""
        self._operations.labels(name, outcome).inc()
        self._seconds.labels(name).observe(seconds)

    def finished(self, request: Finished) -> None:
        """Count a request over HTTP by what it asked for and how it was answered (``RequestObserver``)."""
        self._requests.labels(request.operation or "none", str(request.status)).inc()

    def count(self, name: str, amount: int = 1) -> None:
        """Count what happened; ``changeset.STATE``, ``fence.REASON`` and ``upload.OUTCOME`` by what follows the dot."""
        family, _, label = name.partition(".")
        if label and family in self._families:
            self._families[family].labels(label).inc(amount)
        elif name in self._counters:
            self._counters[name].inc(amount)
        else:
            self._events.labels(name).inc(amount)

    def gauge(self, name: str, value: float) -> None:
        """Note how much of something there is; what has no gauge is not shown."""
        if name in self._gauges:
            self._gauges[name].set(value)

    def note(self, event: str, **fields: object) -> None:
        """Write a line to the log."""
        structlog.get_logger().info(event, **{name: value for name, value in fields.items() if value is not None})

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)
