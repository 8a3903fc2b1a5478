"""The table of upload jobs: they survive restarts and back off by the boot clock (§6)."""

from __future__ import annotations

import msgspec

from flux.store.database import Moment, Transaction

_COLUMNS = "artifact_id, tries, error, sent"


class Job(msgspec.Struct, frozen=True):
    """One open job. ``tries``: how many have begun; ``sent``: bytes that the last one really sent."""

    artifact_id: str
    tries: int
    error: str | None
    sent: int


def queue(tx: Transaction, artifact_id: str, moment: Moment) -> bool:
    """Open a job for an artifact, due now; ``False``, and nothing changes, if it has or had one."""
    return (
        tx.execute(
            "INSERT OR IGNORE INTO upload_jobs (artifact_id, state, due_boot_id, due_boot_ns, created_at)"
            " VALUES (?, 'open', ?, ?, ?)",
            (artifact_id, moment.boot_id, moment.boot_ns, tx.now),
        )
        == 1
    )


def find(tx: Transaction, artifact_id: str) -> Job | None:
    """Return the open job of an artifact."""
    row = tx.one(f"SELECT {_COLUMNS} FROM upload_jobs WHERE artifact_id = ? AND state = 'open'", (artifact_id,))
    return None if row is None else Job(*row)


def due(tx: Transaction, moment: Moment) -> Job | None:
    """Return the open job that has been due for longest; after a reboot all are due."""
    row = tx.one(
        f"SELECT {_COLUMNS} FROM upload_jobs WHERE state = 'open' AND (due_boot_id <> ?1 OR due_boot_ns <= ?2)"
        " ORDER BY due_boot_id = ?1, due_boot_ns, created_at, artifact_id LIMIT 1",
        (moment.boot_id, moment.boot_ns),
    )
    return None if row is None else Job(*row)


def begin(tx: Transaction, artifact_id: str) -> None:
    """Count a try."""
    tx.execute("UPDATE upload_jobs SET tries = tries + 1 WHERE artifact_id = ? AND state = 'open'", (artifact_id,))


def put_off(tx: Transaction, artifact_id: str, error: str, moment: Moment, delay_ns: int) -> None:
    """Record why a try failed and when the next one is due."""
    tx.execute(
        "UPDATE upload_jobs SET error = ?, due_boot_id = ?, due_boot_ns = ? WHERE artifact_id = ? AND state = 'open'",
        (error, moment.boot_id, moment.boot_ns + delay_ns, artifact_id),
    )


def finish(tx: Transaction, artifact_id: str, sent: int) -> None:
    """Close a job."""
    tx.execute(
        "UPDATE upload_jobs SET state = 'done', error = NULL, sent = ? WHERE artifact_id = ?", (sent, artifact_id)
    )


def is_open(tx: Transaction, artifact_id: str | None) -> bool:
    """Tell whether an artifact has an open job."""
    return tx.one("SELECT 1 FROM upload_jobs WHERE artifact_id = ? AND state = 'open'", (artifact_id,)) is not None


def error_of(tx: Transaction, artifact_id: str) -> str | None:
    """Return why the last try of an open job failed."""
    row = tx.one("SELECT error FROM upload_jobs WHERE artifact_id = ? AND state = 'open'", (artifact_id,))
    return None if row is None else row[0]


def cancel_of_sandbox(tx: Transaction, sandbox_id: str) -> int:
    """Drop the open jobs of a destroyed sandbox's own artifacts; a snapshot of it, or a fork's start, goes on."""
    return tx.execute(
        "DELETE FROM upload_jobs WHERE state = 'open' AND artifact_id IN (SELECT id FROM artifacts"
        " WHERE sandbox_id = ?1 AND kind = 'suspend' AND NOT EXISTS (SELECT 1 FROM sandboxes"
        " WHERE sandboxes.id <> ?1 AND artifacts.id IN (sandboxes.artifact_id, sandboxes.restoring)))",
        (sandbox_id,),
    )


def count(tx: Transaction) -> int:
    """Return how many jobs there are, finished ones too."""
    row = tx.one("SELECT count(*) FROM upload_jobs")
    return 0 if row is None else int(row[0])


def queue_missing(tx: Transaction, moment: Moment) -> int:
    """Open a job for every artifact that a row rests on and that has none, as after uploads were switched on."""
    return tx.execute(
        "INSERT OR IGNORE INTO upload_jobs (artifact_id, state, due_boot_id, due_boot_ns, created_at)"
        " SELECT DISTINCT artifacts.id, 'open', ?, ?, ? FROM artifacts JOIN sandboxes"
        " ON sandboxes.artifact_id = artifacts.id WHERE artifacts.state <> 'durable' AND sandboxes.bound = 0",
        (moment.boot_id, moment.boot_ns, tx.now),
    )
