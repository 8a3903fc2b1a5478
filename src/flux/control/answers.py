"""What a node's error means to a wake: decisions over values (spec: generations, §9.2)."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.fence import FINAL, Ended, EndedAs, Reason


class Answer(Enum):
    """What to do next."""

    #: Final for the generation: accept what ended, mint the next at once.
    FINAL = "final"
    #: Somebody else's execution runs there: settle first.
    PREDECESSOR = "predecessor"
    #: Ask the very same again.
    BUSY = "busy"
    #: It failed and was rolled back: the next candidate, another generation.
    FAILED = "failed"
    #: It failed, and would fail so everywhere.
    HOPELESS = "hopeless"
    #: Another store answers under this name; this attempt was never there.
    OTHER_STORE = "other_store"
    #: Nobody knows.
    UNKNOWN = "unknown"


#: The reason that a node's client gives when nothing was sent for sure.
NODE_UNREACHABLE = "NodeUnreachable"

_FINAL = frozenset(reason.value for reason in FINAL)
_HOPELESS = frozenset({Reason.ATTEMPT_REUSED.value, Reason.COLD_START_OF_SAVED.value})


def of(error: FluxError, node_store_id: str | None) -> Answer:
    """Return what an activation's error means. Only what the node signed with its store id is an answer (§5, I9)."""
    reason, signed = error.details.get("reason"), error.details.get("node_store_id")
    if reason is None or signed is None or error.code is Code.UNKNOWN_OUTCOME:
        return Answer.UNKNOWN
    if reason == Reason.OTHER_STORE.value:
        return Answer.OTHER_STORE
    if signed != node_store_id:
        return Answer.UNKNOWN
    if reason in _FINAL:
        return Answer.FINAL
    if reason == Reason.PREDECESSOR_RUNNING.value:
        return Answer.PREDECESSOR
    if reason == Reason.ROW_BUSY.value:
        return Answer.BUSY
    if reason in _HOPELESS or error.code in (Code.INVALID, Code.NOT_APPLICABLE):
        return Answer.HOPELESS
    return Answer.FAILED


def is_unsent(error: FluxError) -> bool:
    """Tell whether a request never left: its node could not be reached at all."""
    return error.details.get("reason") == NODE_UNREACHABLE


def is_signed(error: FluxError, node_store_id: str | None) -> bool:
    """Tell whether an error is the node's own word."""
    return of(error, node_store_id) not in (Answer.UNKNOWN, Answer.OTHER_STORE)


def floor_of(details: dict[str, Any]) -> int:
    """Return the node's floor that an answer reports; 0 if it reports none."""
    floor = details.get("floor", 0)
    return floor if isinstance(floor, int) and floor > 0 else 0


def ended_of(details: dict[str, Any]) -> tuple[Ended, ...]:
    """Return the endings that an answer reports; what cannot be read is none."""
    try:
        return msgspec.convert(details.get("ended", ()), tuple[Ended, ...])
    except msgspec.ValidationError:
        return ()


def newest_artifact(ended: tuple[Ended, ...], after_generation: int) -> Ended | None:
    """Return the latest ending that saved something later than what is current; a rollback saves nothing."""
    saved = [
        ending
        for ending in ended
        if ending.ended_as is EndedAs.SUSPENDED
        and ending.artifact_id is not None
        and ending.generation > after_generation
    ]
    return max(saved, key=lambda ending: ending.generation, default=None)
