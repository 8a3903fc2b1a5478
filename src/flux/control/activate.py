"""One wake's starts: the same attempt until its outcome is known, then whatever the answer calls for (§9.2)."""

from __future__ import annotations

from typing import Any

from flux.control import answers, ask, choose, transitions
from flux.control.answers import Answer
from flux.control.calls import Calls, Nap, Send
from flux.control.context import Control, Deadline
from flux.core.control import NodeStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlEvent
from flux.failpoints import Point
from flux.store.registry import nodes
from flux.store.registry.sandboxes import SandboxRow

_CANDIDATES_MAX = 3
#: With one node it is tried once more: what failed there may have been of the moment.
_TRIES_LEAST = 2
#: What is no fault of the sandbox's: its user may try again.
_PASSING = frozenset({Code.FENCED, Code.NOT_FOUND, Code.UNKNOWN_OUTCOME})
_PASSING_CAUSES = (Code.UNAVAILABLE.value, Code.DENIED.value)
#: After so many answers that say nothing, the attempt is settled by a teardown instead.
_UNKNOWN_MAX = 4


def start(context: Control, row: SandboxRow, deadline: Deadline) -> Calls[None]:
    """Send the row's attempt until something definite comes of it."""
    if row.request is None or row.node is None:
        raise FluxError(Code.INTERNAL, f"cannot wake sandbox {row.id}: its row has no request; delete it")
    unknown = 0
    while not deadline.is_over:
        first = (row.attempt_id or "") in context.unsent
        context.unsent.discard(row.attempt_id or "")
        try:
            activated = yield Send(row.node, row.request, deadline.left_seconds)
        except FluxError as error:
            yield Point.WAKE_ANSWERED
            if first and answers.is_unsent(error) and (yield from _elsewhere(context, row)):
                return
            answer = answers.of(error, row.node_store_id)
            unknown += answer is Answer.UNKNOWN
            if answer not in (Answer.BUSY, Answer.UNKNOWN) or unknown >= _UNKNOWN_MAX:
                yield from _refused(context, row, answer, error)
                return
            if answer is Answer.UNKNOWN and unknown == 1:
                _unreachable(context, row.node)
            yield Nap(min(context.settings.nap_seconds * 2**unknown, deadline.left_seconds), row.id)
            if not _is_still(context, row):
                return
        else:
            yield Point.WAKE_ANSWERED
            if transitions.publish(context, row, activated) is not None:
                yield Point.WAKE_PUBLISHED
            return


def _refused(context: Control, row: SandboxRow, answer: Answer, error: FluxError) -> Calls[None]:
    context.observer.note(
        "start refused", sandbox=row.id, generation=row.generation, attempt=row.attempt_id, node=row.node,
        answer=answer.value, reason=error.details.get("reason"), message=error.message,
    )  # fmt: skip
    if answer is Answer.FINAL:
        yield from _next_generation(context, row, error)
    elif answer in (Answer.PREDECESSOR, Answer.UNKNOWN):
        _to_settle(context, row)
        yield Point.WAKE_ANSWERED
    elif answer in (Answer.FAILED, Answer.OTHER_STORE):
        yield from _next_candidate(context, row, error)
    else:
        yield from _give_up(context, row, error)


def _next_generation(context: Control, row: SandboxRow, error: FluxError) -> Calls[None]:
    """§9.2: the refusal is final for the generation: accept what ended, mint the next at once."""
    if row.refused >= context.settings.wake_generations:
        yield from _give_up(context, row, error)
        return
    saved = ask.saved_of(row, answers.ended_of(error.details))
    try:
        found = choose.candidates(context, row)
    except FluxError as nowhere:
        yield from _give_up(context, row, nowhere)
        return
    node = next((node for node in found if node.node_store_id == row.node_store_id), found[0])
    if _mint(context, row, node, answers.floor_of(error.details), saved, refused=row.refused + 1):
        yield Point.WAKE_MINTED


def _next_candidate(context: Control, row: SandboxRow, error: FluxError) -> Calls[None]:
    """§9.2: a definite failure: the next candidate with a new generation, or the only one once more."""
    try:
        found = choose.candidates(context, row)
    except FluxError as nowhere:
        yield from _give_up(context, row, nowhere)
        return
    if row.tries >= max(_TRIES_LEAST, min(len(found), _CANDIDATES_MAX)):
        yield from _give_up(context, row, error)
        return
    others = [node for node in found if node.node_store_id != row.node_store_id] or found
    node = others[(row.tries - 1) % len(others)]
    if _mint(context, row, node, answers.floor_of(error.details), None, tries=row.tries + 1):
        yield Point.WAKE_MINTED


def _elsewhere(context: Control, row: SandboxRow) -> Calls[bool]:
    """Go on to another node, if there is one that answers: what was never sent cannot have started anything (I1)."""
    if row.node is not None:
        _unreachable(context, row.node)
    try:
        found = choose.candidates(context, row)
    except FluxError:
        return False
    others = [node for node in found if node.reachable and node.node_store_id != row.node_store_id]
    if not others or row.tries >= _CANDIDATES_MAX:
        return False
    minted = _mint(context, row, others[0], 0, None, tries=row.tries + 1)
    yield Point.WAKE_MINTED
    return minted is not None


def _mint(
    context: Control,
    seen: SandboxRow,
    node: NodeStatus,
    floor: int,
    saved: transitions.Saved | None,
    **more: Any,
) -> SandboxRow | None:
    pod_uid = context.placement.reserve(seen.id, node)
    with context.registry.transaction() as tx:
        row = transitions.same(tx, seen)
        if row is None or row.driver != context.process:
            return None
        more |= transitions.accepted(tx, row, saved)
        return transitions.minted(tx, context, row, node, pod_uid, floor, **more)


def _to_settle(context: Control, seen: SandboxRow) -> None:
    with context.registry.transaction() as tx:
        row = transitions.same(tx, seen)
        if row is not None:
            transitions.move(tx, row, ControlEvent.SETTLE, request=None)


def _give_up(context: Control, row: SandboxRow, error: FluxError) -> Calls[None]:
    """§9.3: it stays paused on its original artifact, and everybody who waits gets the error."""
    if transitions.fail(context, row, ControlEvent.WAKE_FAILED, _told(row, error)) is not None:
        yield Point.WAKE_FAILED


def _told(row: SandboxRow, error: FluxError) -> FluxError:
    # a node answers INTERNAL for the rest (§5) and names the cause: a store that is down or refuses may do so no more
    passing = error.code in _PASSING or error.details.get("cause") in _PASSING_CAUSES
    code = Code.UNAVAILABLE if passing else error.code
    after = "it stays paused as it was" if row.lived else "nothing is left of it"
    return FluxError(code, f"{error.message}; {after}", {**error.details, "wake": "failed"})


def _is_still(context: Control, seen: SandboxRow) -> bool:
    row = context.row(seen.id)
    return row is not None and (row.state, row.attempt_id) == (seen.state, seen.attempt_id)


def _unreachable(context: Control, node: str) -> None:
    with context.registry.transaction() as tx:
        nodes.unreachable(tx, node)
