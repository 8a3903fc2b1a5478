"""What every copy engine gives: a throwaway copy of a workspace, and afterwards what a run did to it."""

from __future__ import annotations

from typing import Protocol

from flux.ports.substrate import Overlay
from flux.trees.observed import Observed


class PassedOver(Exception):
    """An engine cannot keep full fidelity here; the text says why."""


class Throwaway(Protocol):
    """A throwaway copy of a workspace."""

    @property
    def tree(self) -> str | Overlay:
        """The copy as a substrate takes it."""
        ...

    @property
    def held(self) -> int:
        """The open directory that holds what was written, each file under its workspace path."""
        ...

    def observe(self, after: int) -> Observed:
        """Return what changed. All processes of the run are dead; ``after`` is its view of the workspace."""
        ...

    def close(self) -> None:
        """Remove the copy. Idempotent."""
        ...
