"""Keeps a run from filling the disk (spec: speculation)."""

from __future__ import annotations

import os
import stat

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.limits import MIB

_RESERVE_SHARE = 20


class DiskGuard(msgspec.Struct, frozen=True, kw_only=True):
    """Watches the file system that holds what a run writes.

    Args:
        scratch: the run's directory.
        reserve_bytes: what is to stay free, or a twentieth of a small file system.
        run_bytes: the most that the run may take.
        used_at_start: bytes in use when it began.
    """

    scratch: str
    reserve_bytes: int
    run_bytes: int
    used_at_start: int

    @classmethod
    def of(cls, scratch: str, *, reserve_bytes: int, run_bytes: int) -> DiskGuard:
        """Begin to watch.

        Raises:
            FluxError: ``exhausted`` if there is too little room to begin with.
        """
        status = os.statvfs(scratch)
        reserve = min(reserve_bytes, status.f_blocks * status.f_frsize // _RESERVE_SHARE)
        guard = cls(scratch=scratch, reserve_bytes=reserve, run_bytes=run_bytes, used_at_start=_used(status))
        guard.check("cannot begin a run")
        return guard

    def check(self, action: str = "the run was stopped") -> None:
        """Look once.

        Raises:
            FluxError: ``exhausted`` if the disk is nearly full, or the run took more than it may.
        """
        status = os.statvfs(self.scratch)
        if status.f_bavail * status.f_frsize < self.reserve_bytes:
            raise FluxError(
                Code.EXHAUSTED,
                f"{action}: less than {max(self.reserve_bytes // MIB, 1)} MiB are left on the state directory's disk; "
                "free some space; nothing was changed",
                {"reason": "disk", "reserve_bytes": self.reserve_bytes},
            )
        # The file system is shared: only when it grew by so much is it worth counting whose files that are.
        if _used(status) - self.used_at_start > self.run_bytes and tree_size(self.scratch).on_disk > self.run_bytes:
            raise FluxError(
                Code.EXHAUSTED,
                f"{action}: it wrote more than {self.run_bytes // MIB} MiB; write less, or raise max_workspace_mib; "
                "nothing was changed",
                {"reason": "run", "limit_bytes": self.run_bytes},
            )


def _used(status: os.statvfs_result) -> int:
    return (status.f_blocks - status.f_bfree) * status.f_frsize


class TreeSize(msgspec.Struct, frozen=True):
    """How much is below a directory: entries, bytes of regular files, bytes on disk; each inode's bytes once."""

    entries: int
    content: int
    on_disk: int


def tree_size(path: str) -> TreeSize:
    """Measure what is below a directory."""
    entries = 0
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    pending = [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as listing:
                for entry in listing:
                    status = entry.stat(follow_symlinks=False)
                    entries += 1
                    content = status.st_size if stat.S_ISREG(status.st_mode) else 0
                    seen[(status.st_dev, status.st_ino)] = content, status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        except OSError:
            continue  # gone meanwhile, or not readable for this user
    return TreeSize(entries, sum(size for size, _ in seen.values()), sum(size for _, size in seen.values()))
