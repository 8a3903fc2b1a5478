"""State machines are tables; this is their one interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from flux.core.errors import Code, FluxError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class Machine(Generic[S, E]):
    """A frozen table ``(state, event) → state``; an absent pair is a refusal that names both.

    Args:
        subject: what moves through the states, for messages ("changeset").
        table: the allowed transitions.
    """

    def __init__(self, subject: str, table: Mapping[tuple[S, E], S]) -> None:
        self.subject = subject
        self.table: Mapping[tuple[S, E], S] = MappingProxyType(dict(table))

    def allows(self, state: S, event: E) -> bool:
        """Tell whether ``event`` may happen in ``state``."""
        return (state, event) in self.table

    def next(self, state: S, event: E) -> S:
        """Return the state that ``event`` leads to.

        Raises:
            FluxError: ``illegal_state``, naming the state, the event and what is allowed instead.
        """
        target = self.table.get((state, event))
        if target is not None:
            return target
        allowed = sorted(other.value for held, other in self.table if held == state)
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot {event.value} a {self.subject} that is {state.value}: {self._advice(state, event, allowed)}",
            {"state": state.value, "event": event.value, "allowed": allowed},
        )

    def _advice(self, state: S, event: E, allowed: list[str]) -> str:
        """Say what can be done instead: the step that is missing, if one is."""
        for (held, first), reached in self.table.items():
            if held == state and (reached, event) in self.table:
                return f"{first.value} it first"
        return f"only {', '.join(allowed)} is possible from there" if allowed else "that state is final"
