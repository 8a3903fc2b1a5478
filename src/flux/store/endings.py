"""The table of endings: how generations ended here, until the control plane has taken note of it (§3)."""

from __future__ import annotations

from flux.core.fence import Ended, EndedAs
from flux.store.database import Transaction


def record(tx: Transaction, sandbox_id: str, ended: Ended) -> None:
    """Remember how a generation ended. The first ending stays: a generation ends once. Its fence is there already.

    The digest of its artifact is kept with it: a lost reply must not lose an artifact whose row is collected later.
    """
    tx.execute(
        "INSERT INTO endings (sandbox_id, generation, ended_as, artifact_id, artifact_digest)"
        " VALUES (?1, ?2, ?3, ?4, (SELECT digest FROM artifacts WHERE id = ?4))"
        " ON CONFLICT (sandbox_id, generation) DO NOTHING",
        (sandbox_id, ended.generation, ended.ended_as.value, ended.artifact_id),
    )


def of_sandbox(tx: Transaction, sandbox_id: str) -> tuple[Ended, ...]:
    """Return a sandbox's endings that are not confirmed, oldest generation first.

    An artifact that has no row any more is durable: nothing else that an ending tells of is ever collected.
    """
    rows = tx.every(
        "SELECT endings.generation, ended_as, artifact_id, artifact_digest,"
        " artifact_id IS NOT NULL AND coalesce(artifacts.state, 'durable') = 'durable'"
        " FROM endings LEFT JOIN artifacts ON artifacts.id = endings.artifact_id"
        " WHERE endings.sandbox_id = ? ORDER BY endings.generation",
        (sandbox_id,),
    )
    return tuple(
        Ended(
            generation=generation,
            ended_as=EndedAs(how),
            artifact_id=artifact,
            artifact_digest=digest,
            durable=bool(durable),
        )
        for generation, how, artifact, digest, durable in rows
    )


def confirm(tx: Transaction, sandbox_id: str, generation: int) -> int:
    """Forget the endings up to a generation, which the control plane has taken note of; return how many."""
    return tx.execute("DELETE FROM endings WHERE sandbox_id = ? AND generation <= ?", (sandbox_id, generation))


def unconfirmed(tx: Transaction) -> list[str]:
    """Return the ids of the sandboxes that have endings which are not confirmed."""
    return [row[0] for row in tx.every("SELECT DISTINCT sandbox_id FROM endings ORDER BY sandbox_id")]
