"""The table of fences: one small row per sandbox, never deleted, the only authority for a refusal (§3)."""

from __future__ import annotations

from flux.core.fence import Fence
from flux.core.receipts import DeleteReceipt, read_delete, write_delete
from flux.core.route import GENERATION_MAX, Route
from flux.store import endings
from flux.store.database import Transaction


def find(tx: Transaction, sandbox_id: str) -> Fence:
    """Return a sandbox's fence with its endings; the empty one if nothing was ever known of it here."""
    row = tx.one(
        "SELECT claimed, claimed_attempt, claimed_pod_uid, claimed_digest, retired FROM fences WHERE sandbox_id = ?",
        (sandbox_id,),
    )
    if row is None:
        return Fence()
    claimed, attempt, pod_uid, digest, retired = row
    return Fence(
        claimed=claimed,
        claimed_attempt=attempt,
        claimed_pod_uid=pod_uid,
        claimed_digest=digest,
        retired=retired,
        ended=endings.of_sandbox(tx, sandbox_id),
    )


def claim(tx: Transaction, sandbox_id: str, route: Route, request_digest: str) -> None:
    """Record the highest generation ever claimed; it never goes down."""
    tx.execute(
        "INSERT INTO fences (sandbox_id, claimed, claimed_attempt, claimed_pod_uid, claimed_digest)"
        " VALUES (?1, ?2, ?3, ?4, ?5)"
        " ON CONFLICT (sandbox_id) DO UPDATE SET claimed = ?2, claimed_attempt = ?3, claimed_pod_uid = ?4,"
        " claimed_digest = ?5 WHERE claimed < ?2",
        (sandbox_id, route.generation, route.attempt_id, route.pod_uid, request_digest),
    )


def retire(tx: Transaction, sandbox_id: str, generation: int) -> None:
    """Let no generation up to this one start here again; also where nothing was known of the sandbox."""
    tx.execute(
        "INSERT INTO fences (sandbox_id, retired) VALUES (?1, ?2)"
        " ON CONFLICT (sandbox_id) DO UPDATE SET retired = max(retired, ?2)",
        (sandbox_id, generation),
    )


def retire_for_ever(tx: Transaction, sandbox_id: str) -> None:
    """Let no generation of a destroyed sandbox start here again."""
    retire(tx, sandbox_id, GENERATION_MAX)


def is_retired_for_ever(tx: Transaction, sandbox_id: str) -> bool:
    """Tell whether a sandbox was destroyed here."""
    found = tx.one("SELECT 1 FROM fences WHERE sandbox_id = ? AND retired = ?", (sandbox_id, GENERATION_MAX))
    return found is not None


def delete_receipt(tx: Transaction, sandbox_id: str) -> DeleteReceipt | None:
    """Return the receipt of the last deletion of the sandbox's row, if there is one that can be read."""
    row = tx.one("SELECT delete_receipt FROM fences WHERE sandbox_id = ?", (sandbox_id,))
    return None if row is None else read_delete(row[0], sandbox_id)


def set_delete_receipt(tx: Transaction, receipt: DeleteReceipt, last_version: int) -> None:
    """Record a deletion, and retire what it covers. ``last_version``: the deleted row's, 0 if there was no row."""
    retire(tx, receipt.sandbox_id, receipt.covers_generation)
    tx.execute(
        "UPDATE fences SET delete_receipt = ?, last_version = max(last_version, ?) WHERE sandbox_id = ?",
        (write_delete(receipt), last_version, receipt.sandbox_id),
    )


def next_version(tx: Transaction, sandbox_id: str) -> int:
    """Return the version of a row that is built anew: greater than that of any row before it."""
    row = tx.one("SELECT last_version FROM fences WHERE sandbox_id = ?", (sandbox_id,))
    return 1 if row is None else int(row[0]) + 1
