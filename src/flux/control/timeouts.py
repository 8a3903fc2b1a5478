"""Time-outs: measured on the boot clock within a boot, never shortened by a connect (spec: sandboxes)."""

from __future__ import annotations

from flux.control import transitions
from flux.control.context import SECOND_NS, Control, no_sandbox, status
from flux.core.access import Actor
from flux.core.control import SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.store.registry import sandboxes
from flux.store.registry.sandboxes import SandboxRow

_MAX_SECONDS = 10 * 365 * 86400


def checked_ttl(seconds: int | None, field: str) -> int | None:
    """Return a time-out that is one. Raises ``invalid``."""
    if seconds is not None and not 1 <= seconds <= _MAX_SECONDS:
        raise FluxError(
            Code.INVALID,
            f"cannot set the time-out: {field} is {seconds}, and 1 to {_MAX_SECONDS} seconds can be had",
            {"field": field},
        )
    return seconds


def set_timeout(context: Control, actor: Actor, reference: str, ttl_seconds: int | None) -> SandboxStatus:
    """Let a sandbox's time-out be so many seconds from now; of one that does not run, from when it does."""
    checked_ttl(ttl_seconds, "ttl_seconds")
    found = context.find(actor, reference)
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, found.id)
        if row is None or row.state.value not in sandboxes.LIVING:
            raise no_sandbox(reference)
        if row.state is ControlState.RUNNING:
            changes = transitions.expiry_of(context, ttl_seconds)
        else:
            changes = {"ttl_seconds": ttl_seconds}
        return status(sandboxes.write(tx, row, **changes))


def extend(context: Control, actor: Actor, reference: str, seconds: int) -> SandboxStatus:
    """Let a running sandbox live at least so long from now."""
    checked_ttl(seconds, "seconds")
    row = context.find(actor, reference)
    return status(at_least(context, row, seconds) if row.state is ControlState.RUNNING else row)


def at_least(context: Control, seen: SandboxRow, timeout_seconds: int | None) -> SandboxRow:
    """Let a running sandbox live at least so long from now; what is left is never shortened."""
    if timeout_seconds is None or _left_seconds(context, seen) >= timeout_seconds:
        return seen
    with context.registry.transaction() as tx:
        row = transitions.same(tx, seen)
        if row is None or row.state is not ControlState.RUNNING or _left_seconds(context, row) >= timeout_seconds:
            return row or seen
        expiry = transitions.expiry_of(context, timeout_seconds)
        return sandboxes.write(tx, row, **{**expiry, "ttl_seconds": row.ttl_seconds})


def _left_seconds(context: Control, row: SandboxRow) -> float:
    if row.expires_at is None:
        return float("inf")
    moment = context.moment()
    if row.boot_id == moment.boot_id:
        return (row.expires_boot_ns - moment.boot_ns) / SECOND_NS
    return row.expires_at - moment.wall
