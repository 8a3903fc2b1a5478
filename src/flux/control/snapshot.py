"""Snapshots and forks: an artifact of a sandbox as it is, and sandboxes made from it (spec: generations, §6)."""

from __future__ import annotations

import msgspec

from flux.control import answers, choose, create, kill, timeouts, wake
from flux.control.answers import Answer
from flux.control.artifacts import shown
from flux.control.calls import Calls, Nap, Send
from flux.control.context import SECOND_NS, Control, Deadline, status
from flux.core.access import Actor
from flux.core.control import SandboxStatus, Snapshot
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import Capture, Captured
from flux.core.sandbox import Sandbox, checked_name
from flux.failpoints import Point
from flux.store.registry import artifacts, sandboxes
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.sandboxes import SandboxRow

_FORKS_MAX = 100


def snapshot(context: Control, actor: Actor, reference: str, name: str | None = None) -> Calls[Snapshot]:
    """Save a sandbox to an artifact of its own; see ``ControlPlane.snapshot``."""
    checked_name(name, "a snapshot")
    row, artifact = yield from _taken(context, context.find(actor, reference), "snapshot", name)
    return Snapshot(artifact=shown(artifact, current=artifact.id == row.artifact_id), status=status(row))


def fork(
    context: Control,
    actor: Actor,
    reference: str,
    count: int = 1,
    name: str | None = None,
    ttl_seconds: int | None = None,
) -> Calls[list[SandboxStatus]]:
    """Make running sandboxes from a sandbox as it is; see ``ControlPlane.fork``."""
    if not 1 <= count <= _FORKS_MAX:
        raise FluxError(Code.INVALID, f"cannot fork {count} times: 1 to {_FORKS_MAX} can be made at once")
    checked_name(name)
    timeouts.checked_ttl(ttl_seconds, "ttl_seconds")
    source, artifact = yield from _taken(context, context.find(actor, reference), "fork", None)
    names = [name] if count == 1 or name is None else [f"{name}-{number}" for number in range(1, count + 1)]
    records = [_record(context, actor, source, names[number % len(names)], ttl_seconds) for number in range(count)]
    rows = [create.new_row(context, record, artifact) for record in records]
    node = choose.candidates(context, rows[0])[0]
    with context.registry.transaction() as tx:
        for row in rows:
            create.insert(tx, context, row, node)
    yield Point.WAKE_RECORDED
    return (yield from _woken(context, rows))


def _woken(context: Control, rows: list[SandboxRow]) -> Calls[list[SandboxStatus]]:
    """Start every copy; all of them or none."""
    made = []
    try:
        for row in rows:
            deadline = Deadline(context.clock, context.settings.wake_timeout_seconds)
            found = yield from wake.woken(context, row.id, deadline)
            made.append(status(found))
    except FluxError:
        for row in rows:
            yield from kill.forever(context, row.id)
        raise
    return made


def _record(context: Control, actor: Actor, source: SandboxRow, name: str | None, ttl_seconds: int | None) -> Sandbox:
    moment = context.moment()
    ttl = source.ttl_seconds if ttl_seconds is None else ttl_seconds
    return msgspec.structs.replace(
        source.record,
        id=f"sb{context.identity()[:16]}",
        name=name,
        owner=actor.key_id,
        created_at=moment.wall,
        ttl_seconds=ttl,
        on_timeout=source.on_timeout,
        expires_at=None if ttl is None else moment.wall + ttl,
        boot_id=moment.boot_id,
        expires_boot_ns=moment.boot_ns + (ttl or 0) * SECOND_NS,
        baseline_at=None,
    )


def _taken(context: Control, found: SandboxRow, action: str, name: str | None) -> Calls[tuple[SandboxRow, ArtifactRow]]:
    """Return an artifact of a sandbox as it is: of a running one a new capture, of a paused one what it rests on."""
    if found.record.layout == "bound":
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot {action} sandbox {found.id}: its files are in a directory of the host, of which nothing is saved; "
            "copy that directory instead",
        )
    deadline = Deadline(context.clock, context.settings.pause_timeout_seconds)
    snapshot_id = context.identity()
    while True:
        row = context.living(found.id)
        if row.state is ControlState.RUNNING:
            captured = yield from _captured(context, row, action, snapshot_id, deadline)
            if captured is not None:
                made = _kept(context, row, captured, action, name)
                yield Point.SNAPSHOT_RECORDED
                return row, made
        elif row.state is ControlState.PAUSED:
            return row, _kept_current(context, row, action, name)
        if deadline.is_over:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot {action} sandbox {row.id}: it is {row.state.value} for too long; try again",
            )
        yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)


def _captured(
    context: Control, row: SandboxRow, action: str, snapshot_id: str, deadline: Deadline
) -> Calls[Captured | None]:
    """Ask the node for a capture; ``None`` if it is to be asked again, or the sandbox is another one's by now."""
    request = Capture(
        sandbox_id=row.id, node_store_id=row.node_store_id or "", execution=row.execution, snapshot_id=snapshot_id
    )
    try:
        captured = yield Send(row.node or "", request, deadline.left_seconds)
    except FluxError as error:
        yield Point.SNAPSHOT_ANSWERED
        answer = answers.of(error, row.node_store_id)
        if answer in (Answer.BUSY, Answer.UNKNOWN) or _has_moved(context, row):
            return None
        code = Code.UNAVAILABLE if error.code in (Code.FENCED, Code.NOT_FOUND) else error.code
        raise FluxError(
            code, f"{error.message}; there is no {action}, and the sandbox is as it was", error.details
        ) from error
    yield Point.SNAPSHOT_ANSWERED
    assert isinstance(captured, Captured)
    return captured


def _has_moved(context: Control, seen: SandboxRow) -> bool:
    row = context.row(seen.id)
    return row is not None and (row.state, row.generation) != (seen.state, seen.generation)


def _kept(context: Control, row: SandboxRow, captured: Captured, action: str, name: str | None) -> ArtifactRow:
    """Record a capture; it is never a candidate for the sandbox's current artifact (§6).

    A snapshot is kept until it is deleted, what was saved for forks for as long as one of them rests on it.
    """
    made = ArtifactRow(
        id=captured.artifact.id,
        digest=captured.artifact.digest,
        sandbox_id=row.id,
        owner=row.owner,
        generation=row.generation,
        kind="snapshot" if action == "snapshot" else "suspend",
        name=name,
        node=row.node,
        node_store_id=row.node_store_id,
        parent=row.artifact_id,
        durable=captured.artifact.durable,
        created_at=context.clock.wall(),
        record=row.sandbox,
    )
    with context.registry.transaction() as tx:
        artifacts.add(tx, made)
        if action == "snapshot":
            artifacts.keep(tx, made.id, name)
        return artifacts.find(tx, made.id) or made


def _kept_current(context: Control, row: SandboxRow, action: str, name: str | None) -> ArtifactRow:
    with context.registry.transaction() as tx:
        held = sandboxes.lock(tx, row.id)
        known = None if held is None or held.artifact_id is None else artifacts.find(tx, held.artifact_id)
        if known is not None and action == "snapshot":
            artifacts.keep(tx, known.id, name)
            known = artifacts.find(tx, known.id)
    if known is None:
        raise FluxError(
            Code.ILLEGAL_STATE, f"cannot {action} sandbox {row.id}: nothing of it was ever saved; resume it first"
        )
    return known
