"""What the engine can be told to do differently. ``app`` fills it from configuration."""

from __future__ import annotations

from typing import Literal

import msgspec

from flux.core.changeset import ConflictScope
from flux.core.limits import MIB, Caps


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine. Sizes in MiB, times in seconds.

    ``persistent``: sandboxes keep their processes between calls (a daemon); else each call starts and ends its own.
    ``template_root``: the host directory that holds templates of managed sandboxes, one directory each.
    ``disk_reserve_mib``: a run is stopped when the state directory's file system has less space left.
    ``run_max_mib``: a run is stopped when what it wrote takes more; the workspace's own limit if absent.
    ``lock_wait_seconds``: how long an operation waits for another one on the same workspace.
    ``admin_token_sha256``: hex digest of the token that is the administrator's.
    """

    persistent: bool = False
    default_kind: str = "procbox"
    max_workspace_mib: int = 4096
    template_root: str | None = None
    default_template: str = "base"
    memory_mib: int | None = None
    cpus: float | None = None
    pids: int | None = 4096
    copy_engine: Literal["auto", "snapshot", "overlay", "reflink", "copy"] = "auto"
    conflict_scope: ConflictScope = "all"
    caps: Caps = Caps()
    exec_timeout_seconds: float = 300.0
    exec_timeout_max_seconds: float = 86400.0
    exec_output_bytes: int = 64 * MIB
    disk_reserve_mib: int = 64
    run_max_mib: int | None = None
    lock_wait_seconds: float = 30.0
    egress_allow_domains: tuple[str, ...] = ()
    admin_token_sha256: str | None = None

    @property
    def max_workspace_bytes(self) -> int:
        """The largest workspace that is copied or overlaid."""
        return self.max_workspace_mib * MIB

    @property
    def run_max_bytes(self) -> int:
        """The most that one run may write."""
        return (self.run_max_mib or self.max_workspace_mib) * MIB
