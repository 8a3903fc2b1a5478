"""The two kinds of workspace: a directory of the user's, or a writable layer over a template (spec: sandboxes)."""

from __future__ import annotations

from typing import Literal

import msgspec

from flux.ports.substrate import Overlay

#: The writable layer, in a managed workspace's directory and in an overlay's scratch directory.
UPPER = "upper"


class Workspace(msgspec.Struct, frozen=True):
    """Where a workspace's files are.

    ``bound``: ``directory`` is the user's own. ``managed``: it holds ``upper/`` and ``work/``, the writable layer over
    the read-only ``template`` directories, nearest first, and over ``below`` where the workspace is as many overlays
    high as the kernel allows: a copy of its own of what lies below, for one more overlay beside it.
    """

    layout: Literal["bound", "managed"]
    directory: str
    template: tuple[str, ...] = ()
    below: Overlay | None = None
