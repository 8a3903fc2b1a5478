"""Transition and delete receipts, and the one function that reads each (spec: generations, §4).

A receipt explains a refusal and excuses a teardown. One that is missing, malformed, of another kind, or that names a
state in which it cannot have been written gives no authority to anybody: the readers return ``None`` for it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from flux.core.lifecycle import DORMANT, NodeState
from flux.core.route import GENERATION_MAX


class ReceiptKind(StrEnum):
    """The transition that a row's receipt tells of."""

    ACTIVATED = "activated"
    ROLLED_BACK = "rolled_back"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    CAPTURED = "captured"


class RollbackReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An activation was undone. ``at``: wall-clock seconds. ``artifact_id``: what the row rests on again."""

    generation: int
    attempt_id: str
    pod_uid: str
    restored_state: NodeState
    artifact_id: str | None
    reason: str
    at: float


class TransitionReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any other transition of an execution, with the artifact that it made, if it made one."""

    generation: int
    attempt_id: str | None
    pod_uid: str
    artifact_id: str | None
    at: float


class DeleteReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is remembered of a deleted row: no generation up to ``covers_generation`` may start here again."""

    sandbox_id: str
    covers_generation: int
    reason: Literal["evicted", "stale", "destroyed", "cleaned_up"]
    at: float


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: ReceiptKind
    payload: msgspec.Raw


_envelope = msgspec.json.Decoder(_Envelope)
_rollback = msgspec.json.Decoder(RollbackReceipt)
_delete = msgspec.json.Decoder(DeleteReceipt)


def write(kind: ReceiptKind, payload: RollbackReceipt | TransitionReceipt) -> str:
    """Return the stored form of a row's receipt."""
    return msgspec.json.encode({"kind": kind.value, "payload": payload}).decode()


def write_delete(receipt: DeleteReceipt) -> str:
    """Return the stored form of a delete receipt."""
    return msgspec.json.encode(receipt).decode()


def read_rollback(stored: str | None) -> RollbackReceipt | None:
    """Return the rollback receipt that a row holds, or ``None`` if what it holds gives no authority."""
    if stored is None:
        return None
    try:
        envelope = _envelope.decode(stored)
        if envelope.kind is not ReceiptKind.ROLLED_BACK:
            return None
        receipt = _rollback.decode(envelope.payload)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return receipt if _is_possible(receipt) else None


def _is_possible(receipt: RollbackReceipt) -> bool:
    """Decode against the state that the receipt names, not the one the row is in (§4)."""
    if receipt.restored_state not in DORMANT or not 1 <= receipt.generation <= GENERATION_MAX:
        return False
    # a sandbox that never ran has no artifact of its own; a suspended one cannot be without
    if receipt.restored_state is NodeState.SUSPENDED:
        return receipt.artifact_id is not None
    return receipt.restored_state is NodeState.STOPPED or receipt.artifact_id is None


def is_current(receipt: RollbackReceipt, state: NodeState) -> bool:
    """Tell whether a row is still in the state that the rollback restored; admission and teardown require it (§4)."""
    return receipt.restored_state is state


def read_delete(stored: str | None, sandbox_id: str) -> DeleteReceipt | None:
    """Return a delete receipt, or ``None`` if what is stored gives no authority for this sandbox."""
    if stored is None:
        return None
    try:
        receipt = _delete.decode(stored)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    if receipt.sandbox_id != sandbox_id or not 1 <= receipt.covers_generation <= GENERATION_MAX:
        return None
    return receipt
