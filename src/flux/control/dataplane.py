"""What is done where a sandbox runs: commands, files, speculation. Each method is the engine's, for one execution.

Who names executions differs: a control plane resolves ids and names and knows what runs; a node in its own process is
told by the credential that a call carries (spec: generations, §6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from flux.engine.expected import expect

if TYPE_CHECKING:
    import socket

    from flux.core.access import Actor
    from flux.core.changeset import Changes, Changeset
    from flux.core.requests import Approve, Decide, DryRun, Exec, Speculate, StartProcess
    from flux.engine import results
    from flux.engine.engine import Engine
    from flux.engine.filesystem.filesystem import Filesystem
    from flux.engine.lifecycle.execute import RunningExec
    from flux.engine.lifecycle.meter import Sample
    from flux.engine.lifecycle.usage import Measured


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a sandbox of this process's engine."""

    sandbox_id: str
    generation: int


class Resolver(Protocol):
    """Tells which sandbox of this process's engine a call is about."""

    def running(self, actor: Actor, sandbox: str) -> Execution:
        """Return the execution of a sandbox that runs here.

        Raises:
            FluxError: ``not_found``; ``illegal_state`` if it does not run; ``fenced`` for an older generation.
        """
        ...

    def known(self, actor: Actor, sandbox: str) -> str:
        """Return the id of a sandbox, whether it runs or not: for what was recorded of it."""
        ...


class DataPlane:
    """The data plane of this process's engine.

    Args:
        engine: does it.
        resolver: says to which sandbox.
    """

    def __init__(self, engine: Engine, resolver: Resolver) -> None:
        self._engine = engine
        self._resolver = resolver

    # Commands and files

    def start_exec(self, actor: Actor, sandbox: str, request: Exec, **streams: Any) -> RunningExec:
        """Start a command whose streams the caller carries; see ``Engine.start_exec`` for the streams."""
        return self._engine.start_exec(actor, self._running(actor, sandbox), request, **streams)

    def execute(self, actor: Actor, sandbox: str, request: Exec) -> results.ExecResult:
        """Run a command to its end."""
        return self._engine.execute(actor, self._running(actor, sandbox), request)

    def start_process(
        self, actor: Actor, sandbox: str, request: StartProcess, terminal: results.TerminalSize | None = None
    ) -> RunningExec:
        """Start a program that runs until it ends or is killed."""
        return self._engine.start_process(actor, self._running(actor, sandbox), request, terminal)

    def usage(self, actor: Actor, sandbox: str) -> Measured:
        """Return what a running sandbox uses now."""
        return self._engine.usage(actor, self._running(actor, sandbox))

    def connect_port(self, actor: Actor, sandbox: str, port: int) -> socket.socket:
        """Return a connection to a TCP port of the sandbox's own loopback. The caller closes it."""
        return self._engine.connect_port(actor, self._running(actor, sandbox), port)

    def environment(self, actor: Actor, sandbox: str) -> dict[str, str]:
        """Return the environment that a running sandbox was created with."""
        return self._engine.environment(actor, self._running(actor, sandbox))

    def filesystem(self, actor: Actor, sandbox: str, user: str) -> Filesystem:
        """Return the files of a running sandbox as one of its users names them, for use in this very call."""
        return self._engine.filesystem(actor, self._running(actor, sandbox), user)

    def read_file(self, actor: Actor, sandbox: str, path: str) -> results.OpenFile:
        """Open a file for reading. The caller closes the descriptor."""
        return self._engine.read_file(actor, self._running(actor, sandbox), path)

    def write_file(
        self, actor: Actor, sandbox: str, path: str, chunks: Iterable[bytes], mode: int | None = None
    ) -> results.Written:
        """Write a file as a whole."""
        return self._engine.write_file(actor, self._running(actor, sandbox), path, chunks, mode)

    def list_directory(self, actor: Actor, sandbox: str, path: str) -> list[results.DirectoryEntry]:
        """List a directory."""
        return self._engine.list_directory(actor, self._running(actor, sandbox), path)

    def baseline(self, actor: Actor, sandbox: str) -> results.Baseline:
        """Remember the tree as it is now."""
        return self._engine.baseline(actor, self._running(actor, sandbox))

    def changes(self, actor: Actor, sandbox: str, path: str | None = None) -> tuple[str, Changes]:
        """Return the sandbox's id and what changed since the baseline."""
        sandbox_id = self._running(actor, sandbox)
        return sandbox_id, self._engine.changes(actor, sandbox_id, path)

    def metrics(
        self, actor: Actor, sandbox: str, start: float | None = None, end: float | None = None
    ) -> tuple[str, list[Sample]]:
        """Return the sandbox's id and what it used lately, between two wall-clock times in seconds; oldest first."""
        sandbox_id = self._known(actor, sandbox)
        return sandbox_id, self._engine.metrics(actor, sandbox_id, start, end)

    # Speculation

    def dry_run(self, actor: Actor, sandbox: str, request: DryRun) -> results.DryRunResult:
        """Run a command in a throwaway copy, keep nothing."""
        return self._engine.dry_run(actor, self._running(actor, sandbox), request)

    def speculate(self, actor: Actor, sandbox: str, request: Speculate) -> results.ChangesetDetail:
        """Run a command in a throwaway copy and stage what it changed."""
        return self._engine.speculate(actor, self._running(actor, sandbox), request)

    def list_changesets(
        self, actor: Actor, sandbox: str, limit: int = 100, cursor: str | None = None
    ) -> results.Page[Changeset]:
        """List changesets, newest first."""
        return self._engine.list_changesets(actor, self._known(actor, sandbox), limit, cursor)

    def get_changeset(self, actor: Actor, sandbox: str, changeset: str) -> results.ChangesetDetail:
        """Return a changeset."""
        return self._engine.get_changeset(actor, self._known(actor, sandbox), changeset)

    def diff(self, actor: Actor, sandbox: str, changeset: str, path: str | None = None) -> list[results.FileDiff]:
        """Return the differences of a changeset's entries."""
        return self._engine.diff(actor, self._known(actor, sandbox), changeset, path)

    def changeset_file(self, actor: Actor, sandbox: str, changeset: str, path: str) -> results.OpenFile:
        """Open the staged content of one file. The caller closes the descriptor."""
        return self._engine.changeset_file(actor, self._known(actor, sandbox), changeset, path)

    def approve(self, actor: Actor, sandbox: str, changeset: str, request: Approve) -> results.ChangesetDetail:
        """Approve a changeset."""
        return self._engine.approve(actor, self._known(actor, sandbox), changeset, request)

    def reject(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> results.ChangesetDetail:
        """Reject a changeset."""
        return self._engine.reject(actor, self._known(actor, sandbox), changeset, request)

    def apply(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> results.ChangesetDetail:
        """Bring an approved changeset into the real sandbox."""
        return self._engine.apply(actor, self._running(actor, sandbox), changeset, request)

    def revert(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> results.ChangesetDetail:
        """Make the inverse of an applied changeset."""
        return self._engine.revert(actor, self._running(actor, sandbox), changeset, request)

    def rerun(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> results.ChangesetDetail:
        """Repeat a changeset's command on the current base."""
        return self._engine.rerun(actor, self._running(actor, sandbox), changeset, request)

    def compare(self, actor: Actor, sandbox: str, changesets: Sequence[str]) -> results.Comparison:
        """Return changesets side by side."""
        return self._engine.compare(actor, self._known(actor, sandbox), changesets)

    def export(self, actor: Actor, sandbox: str, changeset: str, form: Literal["patch", "tar"]) -> results.OpenFile:
        """Write a changeset out. The caller closes the descriptor."""
        return self._engine.export(actor, self._known(actor, sandbox), changeset, form)

    def wait(self, actor: Actor, sandbox: str, changeset: str, timeout_seconds: float) -> results.ChangesetDetail:
        """Return a changeset when it is no longer pending, or as it is when the time is over."""
        return self._engine.wait(actor, self._known(actor, sandbox), changeset, timeout_seconds)

    def health(self) -> results.Health:
        """Tell that the engine answers, and how much it holds."""
        return self._engine.health()

    def _running(self, actor: Actor, sandbox: str) -> str:
        """Return the sandbox's id; what this call does next refuses any other generation of it."""
        execution = self._resolver.running(actor, sandbox)
        expect(execution.generation)
        return execution.sandbox_id

    def _known(self, actor: Actor, sandbox: str) -> str:
        expect(None)
        return self._resolver.known(actor, sandbox)
