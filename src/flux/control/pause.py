"""Pause: a sandbox's execution is saved and ended; asked again, it is the same pause (spec: generations, §6, §9)."""

from __future__ import annotations

from flux.control import transitions
from flux.control.calls import Calls, Nap, Send
from flux.control.context import Control, Deadline, status
from flux.control.moves import advance
from flux.control.watch import Watch
from flux.core.access import Actor
from flux.core.control import SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlEvent, ControlState
from flux.core.node import Inventoried, Inventory
from flux.failpoints import Point
from flux.store.registry import artifacts, sandboxes
from flux.store.registry.sandboxes import SandboxRow

_DURABLE_NAP_SECONDS = 0.5


def pause(context: Control, actor: Actor, reference: str, *, durable: bool = False) -> Calls[SandboxStatus]:
    """Save a sandbox and end its execution; see ``ControlPlane.pause``."""
    row = context.find(actor, reference)
    if durable and row.record.layout == "bound":
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot pause sandbox {row.id} durably: its files are in a directory of the host, of which nothing is "
            "uploaded; pause it without that",
        )
    if durable and not context.settings.uploads:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot pause sandbox {row.id} durably: there is no object store; set [objects] url, or leave durable out",
        )
    if row.state is not ControlState.PAUSED:
        row = yield from paused(context, row.id)
    if durable:
        row = yield from _durable(context, row)
    return status(row)


def paused(context: Control, sandbox_id: str) -> Calls[SandboxRow]:
    """Bring a sandbox to rest, by joining the pause that is under way or by starting one; a wake is waited for.

    A pause that was this one's has happened, also where the sandbox was woken again before anybody looked.
    """
    deadline = Deadline(context.clock, context.settings.pause_timeout_seconds)
    watch = Watch(context)
    joined: str | None = None
    generation: int | None = None
    ours = False
    while True:
        row = context.living(sandbox_id)
        if row.state is ControlState.PAUSED or (generation is not None and row.generation > generation):
            return row
        if row.state is ControlState.RUNNING:
            if joined is not None and joined == row.wake_id and row.failure is not None:
                raise transitions.decoded(row.failure)
            begun = begin(context, row)
            if begun is not None:
                joined, generation, ours = begun.wake_id, begun.generation, True
                yield Point.PAUSE_RECORDED
            continue
        if row.state is ControlState.PAUSING:
            joined, generation = row.wake_id, row.generation
        if deadline.is_over:
            raise _unknown(row, context.settings.pause_timeout_seconds, joined=not ours)
        if not (watch.may_drive(row) and (yield from advance(context, row, deadline)).driven):
            yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)


def begin(context: Control, seen: SandboxRow) -> SandboxRow | None:
    """Record a pause."""
    pause_id = context.identity()
    with context.registry.transaction() as tx:
        row = transitions.same(tx, seen)
        if row is None:
            return None
        return transitions.move(tx, row, ControlEvent.PAUSE, wake_id=pause_id, failure=None, driver=context.process)


def _durable(context: Control, row: SandboxRow) -> Calls[SandboxRow]:
    """Wait until the object store has the artifact; not for long if the tries fail. It is paused all the same."""
    deadline = Deadline(context.clock, context.settings.durable_timeout_seconds)
    patience = Deadline(context.clock, context.settings.durable_patience_seconds)
    while not row.artifact_durable and row.artifact_id is not None:
        if context.upload is not None:
            context.upload()
        held = yield from _reported(context, row)
        row = context.living(row.id)
        if row.artifact_durable or row.artifact_id is None:
            break
        if deadline.is_over or (held is not None and patience.is_over):
            why = f"the last try failed: {held}" if held else "the upload has not ended"
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot tell that sandbox {row.id} is in the object store: {why}; it is paused and safe on node "
                f"{row.node}, and the upload goes on",
                {"artifact_id": row.artifact_id},
            )
        yield Nap(_DURABLE_NAP_SECONDS)
    return row


def _reported(context: Control, row: SandboxRow) -> Calls[str | None]:
    """Ask the node how far the upload is, and note what it says; return the error of the last try."""
    try:
        found = yield Send(row.node or "", Inventory(node_store_id=row.node_store_id or ""), _DURABLE_NAP_SECONDS * 20)
    except FluxError as error:
        return error.message
    assert isinstance(found, Inventoried)
    held = next((held for held in found.artifacts if held.id == row.artifact_id), None)
    if held is None:
        return None
    if held.state == "durable":
        with context.registry.transaction() as tx:
            sandboxes.made_durable(tx, held.id)
            artifacts.report(tx, held)
    return held.error


def _unknown(row: SandboxRow, seconds: float, *, joined: bool) -> FluxError:
    return FluxError(
        Code.UNKNOWN_OUTCOME,
        f"cannot tell whether sandbox {row.id} is paused: node {row.node} has not answered within {seconds:g} seconds; "
        "nothing is lost, ask again",
        {"node": row.node, "generation": row.generation, "joined": joined},
    )
