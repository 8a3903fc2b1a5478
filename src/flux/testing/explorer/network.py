"""Messages between the control plane and nodes: each may be late, repeated or lost, and so may its answer."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any

import msgspec

from flux.core.errors import Code, FluxError
from flux.testing.explorer.tape import Entry
from flux.testing.explorer.task import describe


class Stage(Enum):
    """Where a call is: in the network, being worked on at its node, or answered."""

    SENT = "sent"
    SERVED = "served"
    ANSWERED = "answered"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One message and its answer. ``awaited``: its sender has not given up, nor died. ``key``: tells requests apart."""

    number: int
    node: str
    request: Any
    key: str
    stage: Stage = Stage.SENT
    awaited: bool = True
    answer: Entry | None = None

    def __str__(self) -> str:
        return f"{type(self.request).__name__}@{self.node}#{self.number}"

    def state(self) -> str:
        """Return what tells this call from others in a state of the world."""
        answer = "" if self.answer is None else describe(self.answer)
        return f"{self.node}:{self.key}:{self.stage.value}:{self.awaited}:{answer}"

    @property
    def is_stray(self) -> bool:
        """Tell whether it may still arrive, though nobody waits for it."""
        return self.stage is Stage.SENT and not self.awaited


def key_of(request: Any) -> str:
    """Return a short name that equal requests share."""
    return f"{type(request).__name__}.{hashlib.sha256(repr(request).encode()).hexdigest()[:12]}"


def lost(node: str) -> Entry:
    """Return the answer of a call of which nobody knows what became."""
    return Entry(error=FluxError(Code.UNKNOWN_OUTCOME, f"cannot tell what became of the call: {node} does not answer"))
