"""One pause's request: the same Suspend until its outcome is known, then what the node says of the row (§6, §9)."""

from __future__ import annotations

from flux.control import answers, ask, transitions
from flux.control.answers import Answer
from flux.control.calls import Calls, Nap, Send
from flux.control.context import Control, Deadline
from flux.control.transitions import Saved
from flux.core.access import SYSTEM
from flux.core.audit import AuditKind
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlEvent, NodeState
from flux.core.node import RowReport, Suspend, Suspended
from flux.failpoints import Point
from flux.store.registry.sandboxes import SandboxRow


def suspend(context: Control, row: SandboxRow, deadline: Deadline) -> Calls[None]:
    """Ask the row's node to save the execution, and move the row by the answer."""
    request = Suspend(sandbox_id=row.id, node_store_id=row.node_store_id or "", execution=row.execution)
    try:
        suspended = yield Send(row.node or "", request, deadline.left_seconds)
    except FluxError as error:
        yield Point.PAUSE_ANSWERED
        answer = answers.of(error, row.node_store_id)
        if answer in (Answer.BUSY, Answer.UNKNOWN, Answer.OTHER_STORE):
            yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)
        else:
            yield from _refused(context, row, error, deadline)
        return
    yield Point.PAUSE_ANSWERED
    assert isinstance(suspended, Suspended)
    yield from _rest(context, row, Saved(generation=suspended.generation, artifact=suspended.artifact))


def _refused(context: Control, row: SandboxRow, error: FluxError, deadline: Deadline) -> Calls[None]:
    """The node did not save it: look what it has, and believe that."""
    answered, held = yield from ask.report(context, row)
    if not answered or (held is not None and _is_in_flight(held)):
        yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)
        return
    if held is not None and (held.generation, held.pod_uid) == (row.generation, row.pod_uid):
        if held.state is NodeState.RUNNING:
            told = FluxError(_code(error), f"{error.message}; it runs on", error.details)
            transitions.fail(context, row, ControlEvent.PAUSE_FAILED, told)
            yield Point.PAUSE_ACCEPTED
            return
        if held.state is NodeState.SUSPENDED and held.artifact is not None:
            yield from _rest(context, row, Saved(generation=row.generation, artifact=held.artifact))
            return
    known, saved = yield from ask.settled(context, row, deadline)
    if known:
        yield from _rest(context, row, saved)


def _rest(context: Control, row: SandboxRow, saved: Saved | None) -> Calls[None]:
    event = ControlEvent.LOST if saved is None else ControlEvent.PAUSED
    rested = transitions.rest(context, row, event, saved, stopped=saved is None)
    if rested is not None and saved is None:
        context.audit(AuditKind.SANDBOX_LOST, SYSTEM, row.id, {"generation": row.generation})
    yield Point.PAUSE_ACCEPTED


def _is_in_flight(held: RowReport) -> bool:
    return held.state in (NodeState.SUSPENDING, NodeState.CAPTURING, NodeState.STOPPING, NodeState.ACTIVATING)


def _code(error: FluxError) -> Code:
    return Code.UNAVAILABLE if error.code in (Code.FENCED, Code.NOT_FOUND) else error.code
