"""What the black box keeps: rows, fences, jobs, artifacts, objects; and what a sandbox leaves on the machine."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from flux.core.node import Activate
from flux.core.receipts import DeleteReceipt, RollbackReceipt, read_delete, read_rollback

Record = dict[str, Any]


def _rows(file: Path, query: str, *values: Any) -> list[Record]:
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)
    try:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


class NodeStore:
    """A node's database, read beside it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.file = state / "flux.db"

    def all(self, query: str, *values: Any) -> list[Record]:
        """Return rows as dictionaries."""
        return _rows(self.file, query, *values)

    @property
    def id(self) -> str:
        """Which store it is."""
        found: str = self.all("SELECT node_store_id FROM node_identity")[0]["node_store_id"]
        return found

    def row(self, sandbox: str) -> Record | None:
        """Return a sandbox's row."""
        return next(iter(self.all("SELECT * FROM sandboxes WHERE id = ?", sandbox)), None)

    def state_of(self, sandbox: str) -> str:
        """Return the state of a sandbox's row, ``gone`` without one."""
        row = self.row(sandbox)
        return "gone" if row is None else row["state"]

    def fence(self, sandbox: str) -> Record:
        """Return a sandbox's fence."""
        found: Record = self.all("SELECT * FROM fences WHERE sandbox_id = ?", sandbox)[0]
        return found

    def endings(self, sandbox: str) -> dict[int, tuple[str, str | None]]:
        """Return how generations ended, and with which artifact."""
        found = self.all("SELECT * FROM endings WHERE sandbox_id = ?", sandbox)
        return {row["generation"]: (row["ended_as"], row["artifact_id"]) for row in found}

    def rollback(self, sandbox: str) -> RollbackReceipt | None:
        """Return the rollback receipt of a sandbox's row."""
        row = self.row(sandbox)
        return read_rollback(None if row is None else row["receipt"])

    def deletion(self, sandbox: str) -> DeleteReceipt | None:
        """Return the delete receipt of a sandbox."""
        return read_delete(self.fence(sandbox)["delete_receipt"], sandbox)

    def artifacts(self, sandbox: str) -> list[Record]:
        """Return the artifacts that a sandbox has here."""
        return self.all("SELECT * FROM artifacts WHERE sandbox_id = ? ORDER BY generation", sandbox)

    def jobs(self, sandbox: str) -> list[Record]:
        """Return the upload jobs of a sandbox's artifacts."""
        return self.all(
            "SELECT j.* FROM upload_jobs j JOIN artifacts a ON a.id = j.artifact_id WHERE a.sandbox_id = ?", sandbox
        )

    def everything(self, sandbox: str) -> dict[str, Any]:
        """Return all that a refused call must leave as it was; neither its time nor what others do meanwhile."""
        return {
            "row": self.row(sandbox),
            "fence": self.fence(sandbox) if self.all("SELECT 1 FROM fences WHERE sandbox_id = ?", sandbox) else None,
            "endings": self.endings(sandbox),
            "artifacts": [(row["id"], row["digest"]) for row in self.artifacts(sandbox)],
            "jobs": [row["artifact_id"] for row in self.jobs(sandbox)],
            "pins": self.all("SELECT * FROM pins ORDER BY holder"),
        }


def is_unchanged(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tell whether nothing changed, but for endings that the control plane has taken note of meanwhile."""
    kept = before["endings"].items() >= after["endings"].items()
    return kept and {**before, "endings": None} == {**after, "endings": None}


class ControlStore:
    """The registry, read beside the control plane."""

    def __init__(self, state: Path) -> None:
        self.file = state / "control.db"

    def row(self, sandbox: str) -> Record:
        """Return a sandbox's row, of a tombstone too."""
        found: Record = _rows(self.file, "SELECT * FROM sandboxes WHERE id = ?", sandbox)[0]
        return found

    def request(self, sandbox: str) -> Activate:
        """Return the request of the attempt that was minted last."""
        return msgspec.json.decode(self.row(sandbox)["request"], type=Activate)

    def artifacts(self, sandbox: str) -> list[Record]:
        """Return what is known of a sandbox's artifacts."""
        return _rows(self.file, "SELECT * FROM artifacts WHERE sandbox_id = ?", sandbox)


def published(objects: Path) -> list[str]:
    """Return the ids of the artifacts that the object store has whole."""
    return sorted(path.stem for path in (objects / "artifacts").glob("*.json"))


def processes(sandbox: str) -> list[int]:
    """Return the processes of a sandbox, by the control groups that they are in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                groups = (entry / "cgroup").read_text()
            except OSError:
                continue
            if f"-{sandbox}-" in groups and _runs(entry):
                found.append(int(entry.name))
    return found


def _runs(entry: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def groups(sandbox: str) -> list[str]:
    """Return the control groups of a sandbox."""
    found = []
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{directory}/{name}" for name in names if f"-{sandbox}-" in name]
        names[:] = [name for name in names if not name.startswith("flux-")]
    return found


def mounts(text: str, *, of: int | str = "self") -> list[str]:
    """Return the mounts whose line holds a text, as a process sees them."""
    return [line for line in Path(f"/proc/{of}/mountinfo").read_text().splitlines() if text in line]


def left(state: Path, sandbox: str, *, pid: int | str = "self") -> dict[str, list[Any]]:
    """Return everything on the machine that a sandbox left behind; empty lists if nothing."""
    found = {
        "processes": processes(sandbox),
        "groups": groups(sandbox),
        "mounts": [*mounts(sandbox), *mounts(sandbox, of=pid)],
        "files": [str(path) for path in (state / "sandboxes").glob(f"{sandbox}*")],
        "partial": [str(path) for folder in ("layers", "artifacts") for path in (state / folder).glob(".*.new")],
    }
    return {name: values for name, values in found.items() if values}
