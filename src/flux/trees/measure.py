"""The size of a workspace against its limit, before anything is copied (30-speculation §1)."""

from __future__ import annotations

from flux.core.errors import Code, FluxError

_MIB = 1024 * 1024


def check_size(measured_bytes: int, limit_bytes: int) -> None:
    """Refuse a workspace that is too large.

    Raises:
        FluxError: ``too_large`` with ``measured_bytes`` and ``limit_bytes``.
    """
    if measured_bytes <= limit_bytes:
        return
    raise FluxError(
        Code.TOO_LARGE,
        f"cannot speculate: the workspace holds {measured_bytes} bytes ({measured_bytes / _MIB:.1f} MiB), and at most "
        f"{limit_bytes} ({limit_bytes / _MIB:.1f} MiB) are allowed: make it smaller, or raise max_workspace_mib",
        {"measured_bytes": measured_bytes, "limit_bytes": limit_bytes},
    )
