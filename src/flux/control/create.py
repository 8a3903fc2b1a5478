"""Create: a row, then a wake of its first generation; nothing is left of a failure (spec: generations, §9)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from flux.control import choose, kill, origin, transitions, wake
from flux.control.calls import Calls, Nap
from flux.control.context import GONE, Control, Deadline, status
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.control import NodeStatus, SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.failpoints import Point
from flux.store.registry import idempotency, nodes, sandboxes
from flux.store.registry.artifacts import ArtifactRow
from flux.store.registry.database import RegistryTransaction
from flux.store.registry.sandboxes import SandboxRow

_KEY_CHARACTERS_MAX = 255


class _Faster(Exception):
    """A request with the same idempotency key was faster."""


def create(context: Control, actor: Actor, request: CreateSandbox, key: str | None = None) -> Calls[SandboxStatus]:
    """Create a sandbox, or return the one that the idempotency key made before; see ``ControlPlane.create_sandbox``."""
    scope, digest = actor.key_id or "", _digest(request)
    if key is not None:
        made = yield from _made_before(context, scope, _checked_key(key), digest)
        if made is not None:
            return made
    row = _row(context, actor, request)
    node = choose.candidates(context, row)[0]
    try:
        with context.registry.transaction() as tx:
            if row.artifact_id is not None:
                origin.still_there(tx, row.artifact_id)
            insert(tx, context, row, node)
            if key is not None:
                _remember(tx, context, scope, key, digest, row.id)
    except _Faster:
        return (yield from create(context, actor, request, key))
    yield Point.WAKE_RECORDED
    made_row = yield from first_wake(context, row.id)
    details = {"kind": row.record.kind, "layout": row.record.layout}
    if row.record.snapshot is not None:
        details["snapshot"] = row.record.snapshot
    context.audit(AuditKind.SANDBOX_CREATE, actor, row.id, details)
    return status(made_row)


def _row(context: Control, actor: Actor, request: CreateSandbox) -> SandboxRow:
    """Return the row that a request asks for: over a template, or resting on a snapshot."""
    record = context.build(actor, request)
    if request.snapshot is None:
        return new_row(context, record)
    artifact, source = origin.found(context, actor, request.snapshot)
    return new_row(context, origin.record(record, artifact, source), artifact)


def new_row(context: Control, record: Sandbox, artifact: ArtifactRow | None = None) -> SandboxRow:
    """Return the row of a sandbox that is to be made, resting on an artifact if one is given."""
    made: dict[str, Any] = {}
    if artifact is not None:
        made = {
            "artifact_id": artifact.id,
            "artifact_digest": artifact.digest,
            "artifact_durable": artifact.durable,
            "artifact_store": artifact.node_store_id,
        }
    elif record.layout == "bound":
        made = {"node_store_id": _local_store(context, record)}
    return SandboxRow(
        id=record.id,
        name=record.name,
        owner=record.owner,
        state=ControlState.PAUSED,
        record=record,
        wake_id=context.identity(),
        ttl_seconds=record.ttl_seconds,
        on_timeout=record.on_timeout,
        expires_at=record.expires_at,
        boot_id=record.boot_id,
        expires_boot_ns=record.expires_boot_ns,
        token=context.token(),
        **made,
    )


def insert(tx: RegistryTransaction, context: Control, row: SandboxRow, node: NodeStatus) -> SandboxRow:
    """Add a new row and mint its first generation."""
    sandboxes.insert(tx, row)
    pod_uid = context.placement.reserve(row.id, node)
    return transitions.minted(tx, context, row, node, pod_uid, 0, tries=1)


def first_wake(context: Control, sandbox_id: str) -> Calls[SandboxRow]:
    """Start a new sandbox; if that fails nothing of it is left, on no node."""
    deadline = Deadline(context.clock, context.settings.wake_timeout_seconds)
    try:
        return (yield from wake.woken(context, sandbox_id, deadline))
    except FluxError:
        yield from kill.forever(context, sandbox_id)
        raise


def _local_store(context: Control, record: Sandbox) -> str:
    with context.registry.reading() as tx:
        node = None if context.local is None else nodes.find(tx, context.local)
    if node is None:
        raise FluxError(
            Code.NOT_APPLICABLE,
            f"cannot bind the workspace {record.workspace}: this process has no node of its own, and a directory "
            "belongs to one machine; create a managed sandbox",
            {"field": "workspace"},
        )
    return node.node_store_id


def _remember(tx: RegistryTransaction, context: Control, scope: str, key: str, digest: str, sandbox_id: str) -> None:
    idempotency.delete_before(tx, tx.now - context.settings.idempotency_seconds)
    if not idempotency.insert(tx, scope, key, digest, sandbox_id):
        raise _Faster


def _made_before(context: Control, scope: str, key: str, digest: str) -> Calls[SandboxStatus | None]:
    """Return the sandbox that a key made, when it runs; ``None`` if there is none (any more)."""
    deadline = Deadline(context.clock, context.settings.wake_timeout_seconds)
    while True:
        with context.registry.reading() as tx:
            held = idempotency.find(tx, scope, key)
            if held is None or tx.now - context.settings.idempotency_seconds > held.created_at:
                return None
            row = sandboxes.read(tx, held.sandbox_id)
        if held.request_sha256 != digest:
            raise FluxError(
                Code.ALREADY_EXISTS,
                f"cannot create the sandbox: the idempotency key {key!r} was used with another request; use a new key",
                {"idempotency_key": key, "sandbox_id": held.sandbox_id},
            )
        if row is None or row.state in GONE or context.is_over(row):
            return None
        if row.lived:
            return status(row)
        if deadline.is_over:
            raise _still_being_made(wake.too_late(row, context.settings.wake_timeout_seconds), key)
        if row.state is ControlState.PAUSED:  # it failed, and whoever created it is about to remove it
            yield Nap(context.settings.nap_seconds, row.id)
        else:
            try:
                made = yield from wake.woken(context, row.id, deadline)
            except FluxError as error:
                raise _still_being_made(error, key) from error
            return status(made)


def _still_being_made(error: FluxError, key: str) -> FluxError:
    """Return the error of a repetition that did not see the end of the first request with its key."""
    return FluxError(error.code, error.message, {**error.details, "idempotency_key": key})


def _digest(request: CreateSandbox) -> str:
    # Python's own encoder escapes what is not UTF-8, so every request has a digest.
    return hashlib.sha256(json.dumps(msgspec.to_builtins(request), sort_keys=True).encode()).hexdigest()


def _checked_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or not 1 <= len(key) <= _KEY_CHARACTERS_MAX:
        raise FluxError(
            Code.INVALID,
            f"cannot use the idempotency key: it has 1 to {_KEY_CHARACTERS_MAX} printable ASCII characters",
        )
    return key
