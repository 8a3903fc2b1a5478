"""What is due: time-outs, inventories, and whatever was begun and is not finished (spec: generations, §9)."""

from __future__ import annotations

from collections.abc import Iterable

from flux.control import kill, nodes, pause, reconcile
from flux.control.calls import Calls
from flux.control.context import Control, Deadline
from flux.control.moves import advance
from flux.core.access import SYSTEM
from flux.core.audit import AuditKind
from flux.core.control import Adoption, NodeStatus, Reconciled
from flux.core.errors import FluxError
from flux.core.lifecycle import ControlState
from flux.store.registry import nodes as node_rows
from flux.store.registry import sandboxes, starts
from flux.store.registry.sandboxes import SandboxRow

_MOVING = (ControlState.WAKING, ControlState.SETTLING, ControlState.PAUSING)


def sweep(context: Control) -> Calls[Reconciled]:
    """Do everything that is due once."""
    timed_out, problems = yield from _time_outs(context)
    finished = yield from _unfinished(context, at_once=False)
    unreachable, lost = yield from _inventories(context, None)
    return Reconciled(
        timed_out=tuple(timed_out),
        finished=tuple(finished),
        lost=tuple(lost),
        unreachable=tuple(unreachable),
        problems=tuple(problems),
    )


def recover(context: Control, adopt: Iterable[Adoption] = ()) -> Calls[Reconciled]:
    """Put right what a crash left behind; with a registry of its own, there is nobody else who could be at it."""
    local = yield from nodes.register_local(context)
    adopted = [] if local is None else _adopted(context, local, adopt)
    finished = yield from _unfinished(context, at_once=context.registry.exclusive, starting=True)
    unreachable: list[str] = []
    lost: list[str] = []
    if local is not None and _is_used(context, local):
        unreachable, lost = yield from _inventories(context, local)
    return Reconciled(
        finished=tuple(finished), lost=tuple(lost), adopted=tuple(adopted), unreachable=tuple(unreachable)
    )


def _is_used(context: Control, node: NodeStatus) -> bool:
    with context.registry.reading() as tx:
        return any(row.state is ControlState.RUNNING for row in sandboxes.routed_to(tx, node.node_store_id))


def _time_outs(context: Control) -> Calls[tuple[list[str], list[str]]]:
    """Kill or pause the running sandboxes whose time has come."""
    with context.registry.reading() as tx:
        due = sandboxes.due(tx, context.moment())
    done, problems = [], []
    for row in due:
        try:
            if row.on_timeout == "kill":
                yield from kill.forever(context, row.id, SYSTEM)
            else:
                yield from pause.paused(context, row.id)
                context.audit(AuditKind.SANDBOX_PAUSE, SYSTEM, row.id, {"reason": "time-out"})
            done.append(row.id)
        except FluxError as error:
            problems.append(f"{row.id}: {error.message}")
    return done, problems


def _unfinished(context: Control, *, at_once: bool, starting: bool = False) -> Calls[list[str]]:
    """Go on with kills, wakes, settlings and pauses that nobody is driving any more."""
    with context.registry.reading() as tx:
        killing = sandboxes.in_states(tx, ControlState.KILLING)
        moving = sandboxes.in_states(tx, *_MOVING)
    finished = []
    for row in killing:
        done = yield from kill.finish(context, row.id, Deadline(context.clock, 0))
        if done:
            finished.append(row.id)
    for row in moving:
        if starting and row.node != context.local:
            continue  # it may take its time to answer, for which nobody who starts a daemon is to wait
        if not at_once and not context.abandoned.is_one(context, row):
            continue
        yield from advance(context, row, Deadline(context.clock, context.settings.wake_timeout_seconds))
        after = context.row(row.id)
        if after is not None and after.state is ControlState.PAUSED and not after.lived:
            yield from kill.forever(context, row.id)  # its creation failed, and whoever asked for it is gone
        finished.append(row.id)
    return finished


def _inventories(context: Control, only: NodeStatus | None) -> Calls[tuple[list[str], list[str]]]:
    with context.registry.reading() as tx:
        known = [only] if only is not None else [node for node in node_rows.every(tx) if node.forgotten_at is None]
    unreachable: list[str] = []
    lost: list[str] = []
    for node in known:
        found = yield from reconcile.reconcile(context, node)
        if not found.answered:
            unreachable.append(node.name)
        lost.extend(found.lost)
    return unreachable, lost


def _adopted(context: Control, local: NodeStatus, adopt: Iterable[Adoption]) -> list[str]:
    """Give the sandboxes that only the node knows a row of their own, with their generation (§2)."""
    with context.registry.reading() as tx:
        known = sandboxes.known(tx)
    new = [adoption for adoption in adopt if adoption.sandbox.id not in known]
    for adoption in new:
        row = _row_of(context, local, adoption)
        with context.registry.transaction() as tx:
            sandboxes.insert(tx, row)
            starts.record(tx, row.id, local.node_store_id, local.name)
            reconcile.adopt_artifact(tx, row)
    return [adoption.sandbox.id for adoption in new]


def _row_of(context: Control, local: NodeStatus, adoption: Adoption) -> SandboxRow:
    record, artifact = adoption.sandbox, adoption.artifact
    return SandboxRow(
        id=record.id,
        name=record.name,
        owner=record.owner,
        state=ControlState.RUNNING if adoption.running else ControlState.PAUSED,
        record=record,
        generation=adoption.generation,
        attempt_id=adoption.attempt_id,
        pod_uid=adoption.pod_uid,
        node=local.name,
        node_store_id=local.node_store_id,
        artifact_id=None if artifact is None else artifact.id,
        artifact_digest=None if artifact is None else artifact.digest,
        artifact_durable=artifact is not None and artifact.durable,
        artifact_generation=0 if artifact is None or adoption.running else adoption.generation,
        artifact_store=None if artifact is None else local.node_store_id,
        stopped=not adoption.running and artifact is None,
        lived=True,
        ttl_seconds=record.ttl_seconds,
        on_timeout=record.on_timeout,
        expires_at=record.expires_at,
        boot_id=record.boot_id,
        expires_boot_ns=record.expires_boot_ns,
        token=context.token(),
    )
