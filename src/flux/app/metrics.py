"""What Prometheus reads at ``/metrics`` (20-sandboxes §6)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TRANSITION = "changeset."


class Metrics:
    """Implements ``ports.observer.Observer`` by counting."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._operations = Counter(
            "flux_operations", "Operations by outcome", ["operation", "outcome"], registry=self._registry
        )
        self._seconds = Histogram(
            "flux_operation_seconds", "Latency of operations", ["operation"], buckets=_SECONDS, registry=self._registry
        )
        self._transitions = Counter(
            "flux_changesets", "Changesets by the state they came into", ["state"], registry=self._registry
        )
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        for name, text in (("conflicts", "Applies that met a conflict"), ("staged_bytes", "Bytes staged")):
            self._counters[name] = Counter(f"flux_{name}", text, registry=self._registry)
        self._gauges["live_sandboxes"] = Gauge(
            "flux_live_sandboxes", "Sandboxes with an execution", registry=self._registry
        )

    def operation(self, name: str, outcome: str, seconds: float) -> None:
        """Count an operation that ended."""
        self._operations.labels(name, outcome).inc()
        self._seconds.labels(name).observe(seconds)

    def count(self, name: str, amount: int = 1) -> None:
        """Count what happened; a name ``changeset.STATE`` is a changeset that came into that state."""
        if name.startswith(_TRANSITION):
            self._transitions.labels(name.removeprefix(_TRANSITION)).inc(amount)
        else:
            self._counters[name].inc(amount)

    def gauge(self, name: str, value: float) -> None:
        """Note how much of something there is."""
        self._gauges[name].set(value)

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)
