"""One run's throwaway copy of a workspace: which engine makes it, and what is captured of it (spec: speculation)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from flux.core.errors import Code, FluxError
from flux.core.paths import normalise
from flux.core.requests import CopyEngine
from flux.ports.files import Files
from flux.ports.substrate import Overlay
from flux.trees import capture
from flux.trees.capture import Capture, CaptureRequest
from flux.trees.engines import btrfs, copy, overlay, reflink
from flux.trees.engines.tree import PassedOver, Throwaway
from flux.trees.measure import check_size, measured
from flux.trees.scan import Scan, scan
from flux.trees.workspace import Workspace

__all__ = ["Capture", "CaptureRequest", "RunTree", "prepare"]

Maker = Callable[[], Throwaway]
#: What a run has to know whose workspace is as many overlays high as the kernel stacks.
PARTED = "overlay: without an index, so a write through one name of a linked file parts it from its other names"


class RunTree(Protocol):
    """A throwaway copy of a workspace.

    ``engine``: which one made it. ``reason``: why others, which would have been preferred, were passed over, and what
    this one does not keep; empty if there is nothing to say. ``base``: the workspace before the run.
    """

    engine: str
    reason: str
    base: Scan

    @property
    def tree(self) -> str | Overlay:
        """The copy as a substrate takes it."""
        ...

    def capture(self, after: int, request: CaptureRequest) -> Capture:
        """Find and stage what the run changed. All its processes are dead.

        Args:
            after: an open directory, the workspace as the run saw it.
            request: what to capture and where to stage it.

        Raises:
            FluxError: ``exhausted`` if there is no space to stage it.
            OSError: if it cannot be read or staged for another reason.
        """
        ...

    def close(self) -> None:
        """Remove everything that was made. Idempotent."""
        ...


def prepare(
    workspace: Workspace,
    root: int,
    scratch: str,
    *,
    paths: Sequence[str],
    requested: CopyEngine,
    max_bytes: int,
    files: Files,
    skip: Collection[str] = (),
    probe_cache: str | None = None,
) -> RunTree:
    """Scan a workspace and make a throwaway copy of it.

    Args:
        workspace: which one.
        root: its root, open: the user's directory, or a managed sandbox's merged tree. Must stay open until ``close``.
        scratch: an empty directory on the state directory's file system.
        paths: what will be captured.
        requested: ``auto``, or the engine to use.
        max_bytes: the largest workspace that is accepted.
        skip: workspace paths that do not belong to the workspace.
        probe_cache: a file that remembers what overlays can do here.

    Raises:
        FluxError: ``invalid`` for a malformed path; ``too_large`` before anything is copied; ``not_applicable`` if no
            engine, or not the requested one, keeps full fidelity; ``exhausted`` if there is no space.
        OSError: if the workspace cannot be read.
    """
    for path in paths:
        normalise(path)
    base = scan(root, skip=skip)
    check_size(measured(workspace, base), max_bytes)
    makers: dict[str, Maker] = {
        "snapshot": lambda: btrfs.make(root, base, scratch, files, skip=skip),
        "overlay": lambda: overlay.make(workspace, root, base, scratch, files, probe_cache=probe_cache),
        "reflink": lambda: reflink.make(root, base, scratch, files, skip=skip),
        "copy": lambda: copy.make(root, base, scratch, files, skip=skip),
    }
    if requested != "auto":
        makers = {requested: makers[requested]}
    engine, tree, passed = _first(makers)
    if engine == "overlay" and workspace.below is not None and base.linked:
        passed.append(PARTED)
    return _Run(engine, "; ".join(passed), base, tree, root, tuple(skip))


def _first(makers: dict[str, Maker]) -> tuple[str, Throwaway, list[str]]:
    passed: list[str] = []
    for engine, make in makers.items():
        try:
            return engine, make(), passed
        except PassedOver as reason:
            passed.append(f"{engine}: {reason}")
    raise FluxError(
        Code.NOT_APPLICABLE,
        f"cannot copy the workspace with full fidelity ({'; '.join(passed)}): remove the cause, or run as root",
        {"reasons": passed},
    )


class _Run:
    def __init__(
        self,
        engine: str,
        reason: str,
        base: Scan,
        tree: Throwaway,
        root: int,
        skip: tuple[str, ...],
    ) -> None:
        self.engine = engine
        self.reason = reason
        self.base = base
        self._tree = tree
        self._root = root
        self._skip = skip

    @property
    def tree(self) -> str | Overlay:
        return self._tree.tree

    def capture(self, after: int, request: CaptureRequest) -> Capture:
        return capture.capture(self._tree, after, self._root, self.base, request, skip=self._skip)

    def close(self) -> None:
        self._tree.close()
