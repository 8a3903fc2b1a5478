"""Connect: a sandbox runs, or is woken; the wake is a row, one for all who ask meanwhile (spec: generations, §9)."""

from __future__ import annotations

from typing import Any

from flux.control import choose, timeouts, transitions
from flux.control.calls import Calls, Nap
from flux.control.context import GONE, Control, Deadline, status
from flux.control.moves import NOT_DRIVEN, advance
from flux.control.watch import Watch
from flux.core.access import Actor
from flux.core.control import SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.failpoints import Point
from flux.store.registry.sandboxes import SandboxRow


def connect(context: Control, actor: Actor, reference: str, timeout_seconds: int | None = None) -> Calls[SandboxStatus]:
    """Make a sandbox run and return what it woke from; see ``ControlPlane.resume``."""
    timeouts.checked_ttl(timeout_seconds, "timeout_seconds")
    row = context.find(actor, reference)
    deadline = Deadline(context.clock, context.settings.wake_timeout_seconds)
    if row.state is ControlState.RUNNING:
        return status(timeouts.at_least(context, row, timeout_seconds), already_running=True)
    row = yield from woken(context, row.id, deadline, timeout_seconds, seen=row)
    return status(timeouts.at_least(context, row, timeout_seconds))


def woken(
    context: Control,
    sandbox_id: str,
    deadline: Deadline,
    timeout_seconds: int | None = None,
    seen: SandboxRow | None = None,
) -> Calls[SandboxRow]:
    """Bring a sandbox to run, by joining the wake that is under way or by starting one.

    ``seen``: its row, if it was just read.

    Raises:
        FluxError: what ended the wake; ``unavailable`` at the deadline; ``not_found`` if it is deleted meanwhile.
    """
    watch = Watch(context)
    joined: str | None = None
    while True:
        row = context.living(sandbox_id) if seen is None or seen.state in GONE else seen
        seen, begun = None, None
        if row.state is ControlState.RUNNING:
            return row
        if row.state is ControlState.PAUSED:
            if joined is not None and joined == row.wake_id and row.failure is not None:
                raise transitions.decoded(row.failure)
            begun = begin(context, row, timeout_seconds)
            if begun is None:
                continue
            row = begun
            yield Point.WAKE_MINTED
        if row.state is not ControlState.PAUSING:
            joined = row.wake_id
        if deadline.is_over:
            raise too_late(row, context.settings.wake_timeout_seconds)
        advanced = NOT_DRIVEN
        if watch.may_drive(row):
            advanced = yield from advance(context, row, deadline, fresh=begun is not None)
        seen = advanced.row
        if not advanced.driven:
            yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)


def begin(context: Control, seen: SandboxRow, timeout_seconds: int | None) -> SandboxRow | None:
    """Record a wake: its predecessor is settled, so the next generation is minted with it (§9.0, §9.1)."""
    node = choose.candidates(context, seen)[0]
    pod_uid = context.placement.reserve(seen.id, node)
    more: dict[str, Any] = {"wake_id": context.identity(), "tries": 1, "refused": 0}
    if timeout_seconds is not None:
        more["ttl_seconds"] = timeout_seconds
    with context.registry.transaction() as tx:
        row = transitions.same(tx, seen)
        if row is None:
            return None
        more["artifact_durable"] = row.artifact_durable
        return transitions.minted(tx, context, row, node, pod_uid, 0, **more)


def too_late(row: SandboxRow, seconds: float) -> FluxError:
    """Return the error for a wake that did not end in time; it is gone on with by whoever asks next."""
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot wake sandbox {row.id} within {seconds:g} seconds: node {row.node} has not answered; nothing is lost, "
        "try again",
        {"reason": "WakeTimedOut", "node": row.node, "generation": row.generation, "state": row.state.value},
    )
