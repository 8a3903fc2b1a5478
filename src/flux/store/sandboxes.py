"""The table of the sandboxes on this node: one row each, guarded by its version (spec: generations, §3)."""

from __future__ import annotations

import msgspec

from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.core.sandbox import Sandbox
from flux.store.database import Transaction, Value

_decoder = msgspec.json.Decoder(Sandbox)

_ROW = (
    "state, version, generation, attempt_id, pod_uid, prior_state, prior_generation, prior_pod_uid, artifact_id,"
    " restoring, named, backup, last_activity, receipt, intent, bound"
)
_FIELDS = ("sandbox_id", *_ROW.replace(",", " ").split())
_SET = ", ".join(f"{name} = ?" for name in _ROW.replace(",", " ").split())
_RECORD = "record, state, generation"
_IN_FLIGHT = "('activating', 'suspending', 'stopping', 'capturing', 'deleting')"


def insert(tx: Transaction, row: NodeRow, sandbox: Sandbox) -> None:
    """Add a row; its version is the one given."""
    names = ["id", "name", "owner", "record", *_FIELDS[1:]]
    values = [row.sandbox_id, sandbox.name, sandbox.owner, _encode(sandbox), *_values(row)]
    tx.execute(f"INSERT INTO sandboxes ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)


def update(tx: Transaction, row: NodeRow) -> NodeRow | None:
    """Replace a row whose version is still the one given, and return it with its new version; ``None`` if it is not."""
    written = msgspec.structs.replace(row, version=row.version + 1)
    changed = tx.execute(
        f"UPDATE sandboxes SET {_SET} WHERE id = ? AND version = ?", [*_values(written), row.sandbox_id, row.version]
    )
    return written if changed else None


def delete(tx: Transaction, sandbox_id: str, version: int) -> bool:
    """Delete a row whose version is still the one given; ``False``, and nothing changes, if it is not."""
    return tx.execute("DELETE FROM sandboxes WHERE id = ? AND version = ?", (sandbox_id, version)) == 1


def row(tx: Transaction, sandbox_id: str) -> NodeRow | None:
    """Return a sandbox's row."""
    found = tx.one(f"SELECT id, {_ROW} FROM sandboxes WHERE id = ?", (sandbox_id,))
    return None if found is None else _row(found)


def rows(tx: Transaction) -> list[NodeRow]:
    """Return all rows, oldest first."""
    return [_row(found) for found in tx.every(f"SELECT id, {_ROW} FROM sandboxes ORDER BY number")]


def rows_in_flight(tx: Transaction) -> list[NodeRow]:
    """Return the rows that somebody works on, or worked on when it died, oldest first."""
    found = tx.every(f"SELECT id, {_ROW} FROM sandboxes WHERE state IN {_IN_FLIGHT} ORDER BY number")
    return [_row(one) for one in found]


def rows_by_activity(tx: Transaction) -> list[NodeRow]:
    """Return the rows at rest that nothing runs for, least recently used first."""
    found = tx.every(
        f"SELECT id, {_ROW} FROM sandboxes WHERE state IN ('created', 'suspended', 'stopped')"
        " ORDER BY last_activity, number"
    )
    return [_row(one) for one in found]


def record(tx: Transaction, sandbox_id: str) -> Sandbox | None:
    """Return the record of a sandbox, with the state and generation of its row."""
    found = tx.one(f"SELECT {_RECORD} FROM sandboxes WHERE id = ?", (sandbox_id,))
    return None if found is None else _sandbox(found)


def replace_record(tx: Transaction, sandbox: Sandbox) -> bool:
    """Replace the record of a sandbox that runs; ``False``, and nothing changes, if it does not.

    Whoever works on a row in flight compares its version, so nobody else writes it then.
    """
    return (
        tx.execute(
            "UPDATE sandboxes SET name = ?, record = ?, version = version + 1 WHERE id = ? AND state = 'running'",
            (sandbox.name, _encode(sandbox), sandbox.id),
        )
        == 1
    )


def set_record(tx: Transaction, sandbox: Sandbox) -> None:
    """Replace the record of a row that is claimed in the same transaction."""
    tx.execute(
        "UPDATE sandboxes SET name = ?, owner = ?, record = ? WHERE id = ?",
        (sandbox.name, sandbox.owner, _encode(sandbox), sandbox.id),
    )


def set_credential(tx: Transaction, sandbox_id: str, credential_sha256: str | None) -> None:
    """Set what opens the data plane of a row that is committed in the same transaction; ``None``: nothing does."""
    tx.execute("UPDATE sandboxes SET credential_sha256 = ? WHERE id = ?", (credential_sha256, sandbox_id))


def by_credential(tx: Transaction, sandbox_id: str, credential_sha256: str) -> Sandbox | None:
    """Return a running sandbox if this credential is the one of its generation."""
    found = tx.one(
        f"SELECT {_RECORD} FROM sandboxes WHERE id = ? AND credential_sha256 = ? AND state IN ('running', 'capturing')",
        (sandbox_id, credential_sha256),
    )
    return None if found is None else _sandbox(found)


def set_backup(tx: Transaction, artifact_id: str) -> int:
    """Mark the rows at rest that rest on an artifact as backed up; rows in flight are marked when they come to rest."""
    return tx.execute(
        "UPDATE sandboxes SET backup = 1, version = version + 1"
        f" WHERE artifact_id = ? AND backup = 0 AND state NOT IN {_IN_FLIGHT}",
        (artifact_id,),
    )


def find(tx: Transaction, reference: str) -> Sandbox | None:
    """Return the sandbox with that id, or the newest one with that name that is not being deleted."""
    found = tx.one(f"SELECT {_RECORD} FROM sandboxes WHERE id = ?", (reference,)) or tx.one(
        f"SELECT {_RECORD} FROM sandboxes WHERE name = ? AND state <> 'deleting' ORDER BY number DESC", (reference,)
    )
    return None if found is None else _sandbox(found)


def count(tx: Transaction) -> int:
    """Return how many sandboxes run."""
    found = tx.one("SELECT count(*) FROM sandboxes WHERE state = 'running'")
    return 0 if found is None else int(found[0])


def _values(row: NodeRow) -> list[Value]:
    return [_value(getattr(row, name)) for name in _FIELDS[1:]]


def _value(value: object) -> Value:
    if isinstance(value, NodeState):
        return value.value
    if isinstance(value, bool):
        return int(value)
    assert value is None or isinstance(value, str | int | float)
    return value


def _row(found: tuple[object, ...]) -> NodeRow:
    fields = dict(zip(_FIELDS, found, strict=True))
    return msgspec.convert(fields | {name: bool(fields[name]) for name in ("backup", "bound")}, NodeRow)


def _sandbox(found: tuple[object, ...]) -> Sandbox:
    record, state, generation = found
    return msgspec.structs.replace(
        _decoder.decode(str(record)), state=NodeState(str(state)), generation=_generation(generation)
    )


def _generation(value: object) -> int:
    return value if isinstance(value, int) else 0


def _encode(sandbox: Sandbox) -> str:
    return msgspec.json.encode(sandbox).decode()
