"""The registry's transactions: each decides on a row that it has locked, and moves it by ``CONTROL_LIFE`` (§9).

Every one is guarded by what its caller acted on: the generation and the attempt, and where an artifact is accepted also
the artifact that was current. Guards that do not hold change nothing and return ``None``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flux.control.context import SECOND_NS, Control
from flux.core.control import NodeStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import CONTROL_LIFE, ControlEvent, ControlState
from flux.core.node import Activate, Activated, ArtifactReference
from flux.core.route import GENERATION_MAX, Route
from flux.store.registry import artifacts, sandboxes, starts
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import RegistryTransaction
from flux.store.registry.sandboxes import SandboxRow


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that a generation left, as an answer reported it."""

    generation: int
    artifact: ArtifactReference


def move(tx: RegistryTransaction, row: SandboxRow, event: ControlEvent, **changes: Any) -> SandboxRow:
    """Move a locked row by an event. Raises ``illegal_state`` if the table does not have it."""
    return sandboxes.write(tx, row, state=CONTROL_LIFE.next(row.state, event), **changes)


def same(tx: RegistryTransaction, seen: SandboxRow) -> SandboxRow | None:
    """Lock a row and return it if it is still about the execution, in the state and on the artifact, that was seen."""
    row = sandboxes.lock(tx, seen.id)
    if row is None or (row.state, row.generation, row.attempt_id) != (seen.state, seen.generation, seen.attempt_id):
        return None
    return row if row.artifact_id == seen.artifact_id else None  # §6: compare-and-set on the expected artifact


def minted(
    tx: RegistryTransaction, context: Control, row: SandboxRow, node: NodeStatus, pod_uid: str, floor: int, **more: Any
) -> SandboxRow:
    """Mint the next generation of a locked row, above what it had and what a node reported (§2, §9.1).

    The start is recorded before anything is sent, so that a kill reaches every node that may ever have got one.
    """
    generation = max(row.generation, floor) + 1
    if generation > GENERATION_MAX:
        raise FluxError(Code.EXHAUSTED, f"cannot wake sandbox {row.id}: it has no generation left; fork it")
    route = Route(generation=generation, attempt_id=context.identity(), pod_uid=pod_uid)
    changed = msgspec.structs.replace(row, **more)
    request = Activate(
        sandbox_id=row.id,
        node_store_id=node.node_store_id,
        route=route,
        sandbox=row.record,
        artifact=changed.artifact,
        create=not row.lived,
    )
    starts.record(tx, row.id, node.node_store_id, node.name)
    context.unsent.add(route.attempt_id)
    values = {
        **more,
        "generation": generation,
        "attempt_id": route.attempt_id,
        "pod_uid": pod_uid,
        "node": node.name,
        "node_store_id": node.node_store_id,
        "request": request,
        "address": "",
        "credential": "",
        "failure": None,
        "driver": context.process,
    }
    return move(tx, row, ControlEvent.WAKE, **values)


def accepted(tx: RegistryTransaction, row: SandboxRow, saved: Saved | None) -> dict[str, Any]:
    """Return the columns that make an artifact the current one; nothing changes for an older generation's (§6)."""
    if saved is None or saved.generation <= row.artifact_generation or saved.artifact.id == row.artifact_id:
        return {}
    artifacts.add(
        tx,
        ArtifactRow(
            id=saved.artifact.id,
            digest=saved.artifact.digest,
            sandbox_id=row.id,
            owner=row.owner,
            generation=saved.generation,
            kind="suspend",
            node=row.node,
            node_store_id=row.node_store_id,
            parent=row.artifact_id,
            durable=saved.artifact.durable,
            created_at=tx.now,
            record=row.sandbox,
        ),
    )
    return {
        "artifact_id": saved.artifact.id,
        "artifact_digest": saved.artifact.digest,
        "artifact_durable": saved.artifact.durable,
        "artifact_generation": saved.generation,
        "artifact_store": row.node_store_id,
        "stopped": False,
    }


def publish(context: Control, seen: SandboxRow, activated: Activated) -> SandboxRow | None:
    """Publish a route: the sandbox runs. Guarded by the generation and the attempt, and a tombstone wins (§9.2)."""
    with context.registry.transaction() as tx:
        row = same(tx, seen)
        if row is None or activated.route != row.route:
            return None
        expiry = {} if not row.lived else expiry_of(context, row.ttl_seconds)
        came = "cold" if row.artifact_id is None else "last_artifact_after_stop" if row.stopped else "artifact"
        published = move(
            tx,
            row,
            ControlEvent.WOKEN,
            address=activated.address,
            credential=activated.credential,
            woke_from=came,
            lived=True,
            stopped=False,
            request=None,
            driver=None,
            tries=0,
            refused=0,
            failure=None,
            **expiry,
        )
    context.changed(seen.id)
    return published


def fail(context: Control, seen: SandboxRow, event: ControlEvent, error: FluxError, **more: Any) -> SandboxRow | None:
    """End an operation that came to nothing; those who joined it get the same error."""
    with context.registry.transaction() as tx:
        row = same(tx, seen)
        if row is None:
            return None
        changes = {"failure": encoded(error), "request": None, "driver": None, "tries": 0, "refused": 0, **more}
        failed = move(tx, row, event, **changes)
    context.changed(seen.id)
    return failed


def rest(
    context: Control, seen: SandboxRow, event: ControlEvent, saved: Saved | None, *, stopped: bool
) -> SandboxRow | None:
    """Let a sandbox rest, on what its execution saved or, if it was ``stopped``, on what it had before."""
    with context.registry.transaction() as tx:
        row = same(tx, seen)
        if row is None:
            return None
        changes = accepted(tx, row, saved)
        if stopped and not changes:
            changes["stopped"] = True
        rested = move(
            tx,
            row,
            event,
            address="",
            credential="",
            request=None,
            driver=None,
            failure=None,
            tries=0,
            refused=0,
            **changes,
        )
    context.changed(seen.id)
    return rested


def take(context: Control, seen: SandboxRow) -> None:
    """Note that this process drives a row on, so that others give it time."""
    if seen.driver == context.process:
        return
    context.unsent.discard(seen.attempt_id or "")  # whoever drove it before may have sent it
    with context.registry.transaction() as tx:
        row = same(tx, seen)
        if row is not None:
            sandboxes.write(tx, row, driver=context.process)


def expiry_of(context: Control, ttl_seconds: int | None) -> dict[str, Any]:
    """Return the columns of a time-out that is so many seconds from now."""
    moment = context.moment()
    return {
        "ttl_seconds": ttl_seconds,
        "expires_at": None if ttl_seconds is None else moment.wall + ttl_seconds,
        "boot_id": moment.boot_id,
        "expires_boot_ns": moment.boot_ns + (ttl_seconds or 0) * SECOND_NS,
    }


def encoded(error: FluxError) -> str:
    """Return an error's stored form."""
    try:
        details = msgspec.json.encode(error.details).decode()
    except (TypeError, UnicodeError, ValueError):
        details = "{}"
    return msgspec.json.encode([error.code.value, error.message, details]).decode()


def decoded(stored: str) -> FluxError:
    """Return the error of a stored form."""
    code, message, details = msgspec.json.decode(stored, type=tuple[str, str, str])
    return FluxError(Code(code), message, msgspec.json.decode(details))


def is_moving(state: ControlState) -> bool:
    """Tell whether somebody has to drive a sandbox in this state on."""
    return state in (ControlState.WAKING, ControlState.SETTLING, ControlState.PAUSING)
