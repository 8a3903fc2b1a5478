"""What a node does to the machine for an execution: everything between two transactions (spec: generations, §5–§8).

The node manager decides and records; this port acts. Every call is idempotent, or undone by ``discard``; each may fail
with a ``FluxError`` or die half-way, and recovery repeats it or undoes it. ``flux.testing.executions`` is its fake.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A captured artifact, complete and durable on the local disk. Sizes in bytes.

    ``size``: of all contents; ``stored``: of those that only this artifact brought. ``layers``: ids, nearest first.
    """

    reference: ArtifactReference
    size: int
    stored: int
    layers: tuple[str, ...]


class OwnExecution(msgspec.Struct, frozen=True, kw_only=True):
    """Something on this machine that carries an execution's name: files, mounts or processes. Age in seconds.

    ``generation`` 0: files of the sandbox as a whole, where no generation has any.
    """

    sandbox_id: str
    generation: int
    age_seconds: float


class Executions(Protocol):
    """The executions of one node."""

    def admit(self, sandbox: Sandbox, artifact: ArtifactReference | None) -> None:
        """Make sure that there is room for an activation. Raises ``exhausted``."""
        ...

    def prepare(self, sandbox: Sandbox, generation: int, artifact: ArtifactReference | None) -> None:
        """Fetch and verify exactly ``artifact`` and lay the generation's tree over it; without one, an empty layer.

        Raises:
            FluxError: ``exhausted``; ``not_found`` (no such artifact); ``internal`` with the reason ``DataLoss`` (a
                digest is wrong); ``unavailable`` (object store).
        """
        ...

    def start(self, sandbox: Sandbox, generation: int) -> None:
        """Start the prepared execution, tell its agent the new generation, and return when it is healthy."""
        ...

    def discard(self, sandbox_id: str, generation: int) -> None:
        """Undo everything of a generation: processes, mounts, files. Nothing of an artifact. Idempotent."""
        ...

    def alive(self, sandbox: Sandbox, generation: int) -> bool:
        """Tell whether the execution can go on: it runs, or its kind starts it again in place without any loss."""
        ...

    def quiesce(self, sandbox: Sandbox, generation: int) -> None:
        """Freeze the execution and keep everybody else from its tree until ``resume`` or ``end``; sync the tree.

        Raises:
            FluxError: ``unavailable`` if others had the tree for too long; nothing is frozen then.
        """
        ...

    def resume(self, sandbox: Sandbox, generation: int) -> None:
        """Undo ``quiesce``: let the execution go on. Idempotent, also where it is not frozen."""
        ...

    def capture(
        self, sandbox: Sandbox, generation: int, parent: ArtifactReference | None, *, created_at: float, snapshot: bool
    ) -> Made:
        """Save the quiesced execution as an artifact: temporary directory, sync all, rename, sync directory (§6).

        For a suspension the generation's own layer may become the artifact's; for a snapshot it stays in use. An
        interrupted capture leaves nothing that ``end``, ``discard`` or the reconciler does not remove.
        """
        ...

    def end(self, sandbox: Sandbox, generation: int) -> None:
        """End a saved execution: kill everything, free what ``quiesce`` holds, remove the generation's files."""
        ...

    def kill(self, sandbox: Sandbox, generation: int) -> None:
        """End an execution that is not saved: its processes, and its files too where an artifact stands for them."""
        ...

    def remove(self, sandbox_id: str) -> None:
        """Remove everything of a sandbox but its artifacts: every generation, home, temporary files. Idempotent."""
        ...

    def own(self) -> list[OwnExecution]:
        """Return everything on this machine that carries the name of an execution, for the reconciler."""
        ...
