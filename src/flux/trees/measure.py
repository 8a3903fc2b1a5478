"""The size of a workspace against its limit, before anything is copied (spec: speculation)."""

from __future__ import annotations

import os

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.trees import _native
from flux.trees.beneath import DIRECTORY
from flux.trees.scan import Scan
from flux.trees.workspace import UPPER, Workspace

_MIB = 1024 * 1024


def measured(workspace: Workspace, base: Scan) -> int:
    """Return a workspace's size in bytes; of a managed one the writable layer's, as the template is nobody's own."""
    if workspace.layout == "bound":
        return base.total_bytes
    layer = os.open(f"{workspace.directory}/{UPPER}", DIRECTORY)
    try:
        return _native.scan(layer, paths.ROOT, [], None)[3]
    finally:
        os.close(layer)


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
