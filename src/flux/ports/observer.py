"""Where Flux tells how it is doing, so that metrics and logs are no concern of its own (spec: sandboxes)."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Hears of every operation and of what is counted."""

    def operation(self, name: str, outcome: str, seconds: float) -> None:
        """Hear that an operation ended: its ``outcome`` is ``ok`` or an error's code, its latency in seconds."""
        ...

    def count(self, name: str, amount: int = 1) -> None:
        """Hear that something happened ``amount`` times: ``conflicts``, ``staged_bytes``, ``changeset.STATE``.

        A node counts ``fence.REASON``, ``upload.OUTCOME`` and ``uploaded_bytes``.
        """
        ...

    def gauge(self, name: str, value: float) -> None:
        """Hear how much of something there is now (``live_sandboxes``)."""
        ...

    def note(self, event: str, **fields: object) -> None:
        """Hear what happened to an execution, for the log: ``sandbox``, ``generation``, ``attempt`` and why."""
        ...


class Unobserved:
    """Hears and forgets."""

    def operation(self, name: str, outcome: str, seconds: float) -> None:
        """Forget it."""

    def count(self, name: str, amount: int = 1) -> None:
        """Forget it."""

    def gauge(self, name: str, value: float) -> None:
        """Forget it."""

    def note(self, event: str, **fields: object) -> None:
        """Forget it."""
