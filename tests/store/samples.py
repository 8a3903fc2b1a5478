"""Records for tests, complete but for what a test is about."""

from __future__ import annotations

from typing import Any

import msgspec

from flux.core.changeset import Change, Changes, Changeset, Entry, Output, SideEffects, Staged, State
from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.core.manifest import EntryType
from flux.core.sandbox import Sandbox

SECOND_NS = 1_000_000_000


def changeset(changeset_id: str = "cs1", **differently: Any) -> Changeset:
    """Return a pending changeset that expires an hour after the fake clock's first moment."""
    record = Changeset(
        id=changeset_id,
        sandbox_id="sb1",
        state=State.PENDING,
        command="true",
        argv=None,
        created_at=1_700_000_000.0,
        expires_at=1_700_003_600.0,
        boot_id="boot-1",
        expires_boot_ns=4_600 * SECOND_NS,
        run_via="workspace-copy",
        copy_engine="copy",
        copy_engine_reason="",
        paths=["/"],
        exit_code=0,
        signal=None,
        timed_out=False,
        duration_ms=1,
        stdout=Output(text=""),
        stderr=Output(text=""),
        counts={},
        unstaged=[],
        skipped=[],
        not_captured=[],
        discarded=[],
        side_effects=SideEffects(egress="blocked", enforced=True),
        revertible=True,
        revertible_reason=None,
        conflict_scope="all",
        digest="sha256:0",
        root="/w",
        root_device=1,
        root_inode=2,
    )
    return msgspec.structs.replace(record, **differently)


def changes() -> Changes:
    """Return one added file."""
    entry = Entry(type=EntryType.FILE, mode="0644", uid=0, gid=0, size=2, mtime_ns=0, digest="sha256:1")
    return Changes.of([Change(path="/a", after=entry, staged=Staged(blob="000000"))], unchanged=3)


def sandbox(sandbox_id: str = "sb1", **differently: Any) -> Sandbox:
    """Return a bound sandbox that lives until it is deleted."""
    record = Sandbox(
        id=sandbox_id,
        kind="procbox",
        layout="bound",
        state=NodeState.RUNNING,
        created_at=1_700_000_000.0,
        root_device=1,
        root_inode=2,
        workspace="/w",
    )
    return msgspec.structs.replace(record, **differently)


def row(sandbox_id: str = "sb1", **differently: Any) -> NodeRow:
    """Return the row of a sandbox that runs as its first generation."""
    record = NodeRow(
        sandbox_id=sandbox_id,
        state=NodeState.RUNNING,
        version=1,
        generation=1,
        attempt_id="a1",
        pod_uid="p1",
        last_activity=1_700_000_000.0,
    )
    return msgspec.structs.replace(record, **differently)
