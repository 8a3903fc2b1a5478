"""The engine: everything that can be asked of Flux, as one object. Each method is a doorway to a module beside it.

All methods are synchronous and thread-safe and raise ``FluxError`` only. The first argument is who asks: the role
must allow the operation (``denied``), and sandboxes of others do not exist for agents and users (``not_found``). A
sandbox is named by its id or its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from flux.core.access import Actor, Key
from flux.core.audit import AuditEvent, AuditFilter, AuditKind
from flux.core.changeset import Changes, Changeset
from flux.core.requests import Approve, CreateKey, CreateSandbox, Decide, DryRun, Exec, Speculate, StartProcess
from flux.core.sandbox import Sandbox
from flux.engine import keys
from flux.engine.context import Context
from flux.engine.lifecycle import baseline, connect, create, execute, files, metering, recover, usage
from flux.engine.lifecycle.execute import RunningExec
from flux.engine.lifecycle.meter import Sample
from flux.engine.results import (
    Baseline,
    ChangesetDetail,
    Comparison,
    DirectoryEntry,
    DryRunResult,
    ExecResult,
    FileDiff,
    Health,
    NewKey,
    OpenFile,
    Page,
    Recovery,
    TerminalSize,
    Written,
)
from flux.engine.settings import Settings
from flux.engine.speculation import apply, compare, decide, rerun, revert, run, sweep, views, wait
from flux.ports.clock import Clock
from flux.ports.files import Files
from flux.ports.observer import Observer, Unobserved
from flux.ports.substrate import Check, Substrate
from flux.store.stores import Stores

if TYPE_CHECKING:
    import socket

    from flux.engine.filesystem.filesystem import Filesystem
    from flux.engine.node.manager import NodeManager
    from flux.engine.node.node import NodeSettings
    from flux.ports.artifacts import ObjectStore


class Engine:
    """One state directory's engine. There is one per process and state directory; ``app`` sees to it.

    Args:
        stores: the opened state directory.
        substrates: what can run sandboxes, by kind.
        clock: the time.
        files: the mutating file calls.
        settings: how to work.
        observer: who hears of operations, for metrics.
        objects: where artifacts are brought; ``None`` if they stay on this node.
        node: how the node manager works.
    """

    def __init__(
        self,
        stores: Stores,
        substrates: Mapping[str, Substrate],
        clock: Clock,
        files: Files,
        settings: Settings,
        observer: Observer | None = None,
        *,
        objects: ObjectStore | None = None,
        node: NodeSettings | None = None,
    ) -> None:
        self._context = Context(stores, substrates, clock, files, settings, observer or Unobserved())
        self._context.objects, self._context.node_settings = objects, node

    @property
    def context(self) -> Context:
        """What the engine's modules share, for who composes more on the same state directory."""
        return self._context

    @property
    def node(self) -> NodeManager:
        """What starts, saves and ends the sandboxes here; opened and recovered when it is first asked for."""
        return self._context.node

    # Sandboxes

    def build_sandbox(self, actor: Actor, request: CreateSandbox) -> Sandbox:
        """Return the record of the sandbox that a request asks for; nothing is made yet."""
        return create.build_record(self._context, actor, request)

    # Commands and files in the real sandbox

    def start_exec(
        self,
        actor: Actor,
        sandbox: str,
        request: Exec,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        terminal: TerminalSize | None = None,
    ) -> RunningExec:
        """Start a command whose streams the caller carries; it must ``wait`` for it and ``close`` it.

        Args:
            actor: who asks.
            sandbox: where.
            request: the command; its own stdin fields are not looked at.
            stdin: a descriptor to read input from, the caller's; ``None`` makes a pipe (``RunningExec.stdin``).
            stdout: a descriptor to write to; ``None`` makes a pipe (``RunningExec.stdout``).
            stderr: as ``stdout``.
            terminal: give the command a terminal of this size instead; its master is ``RunningExec.terminal``.
        """
        with self._context.operation(actor, "sandbox.exec"):
            return execute.start_exec(self._context, actor, sandbox, request, (stdin, stdout, stderr), terminal)

    def execute(self, actor: Actor, sandbox: str, request: Exec) -> ExecResult:
        """Run a command to its end and return its output, which is kept in memory up to a bound."""
        with self._context.operation(actor, "sandbox.exec"):
            return execute.execute(self._context, actor, sandbox, request)

    def start_process(
        self, actor: Actor, sandbox: str, request: StartProcess, terminal: TerminalSize | None = None
    ) -> RunningExec:
        """Start a program that runs until it ends or is killed; its streams are carried as those of ``start_exec``.

        Raises:
            FluxError: ``invalid`` for a program, directory or user that is not there.
        """
        with self._context.operation(actor, "sandbox.exec"):
            return execute.start_process(self._context, actor, sandbox, request, terminal)

    def usage(self, actor: Actor, sandbox: str) -> usage.Measured:
        """Return what a running sandbox uses now; ``unavailable`` if it has no execution at the moment."""
        with self._context.operation(actor, "sandbox.get"):
            return usage.measure(self._context, actor, sandbox)

    def metrics(self, actor: Actor, sandbox: str, start: float | None, end: float | None) -> list[Sample]:
        """Return what a sandbox used lately, between two wall-clock times in seconds; oldest first."""
        with self._context.operation(actor, "sandbox.metrics"):
            return metering.samples(self._context, actor, sandbox, start, end)

    def connect_port(self, actor: Actor, sandbox: str, port: int) -> socket.socket:
        """Return a connection to what listens at a TCP port of the sandbox's own loopback. The caller closes it."""
        with self._context.operation(actor, "sandbox.exec"):
            return connect.connect_port(self._context, actor, sandbox, port)

    def environment(self, actor: Actor, sandbox: str) -> dict[str, str]:
        """Return the environment that a running sandbox was created with."""
        with self._context.operation(actor, "sandbox.get"):
            return dict(self._context.sandbox(actor, sandbox).environment)

    def filesystem(self, actor: Actor, sandbox: str, user: str) -> Filesystem:
        """Return the files of a sandbox as one of its users names them (``engine.filesystem``)."""
        from flux.engine.filesystem.filesystem import Filesystem

        return Filesystem(self._context, actor, sandbox, user)

    def read_file(self, actor: Actor, sandbox: str, path: str) -> OpenFile:
        """Open a regular file of the sandbox for reading. The caller closes the descriptor."""
        with self._context.operation(actor, "files.read"):
            return files.read_file(self._context, actor, sandbox, path)

    def write_file(
        self, actor: Actor, sandbox: str, path: str, chunks: Iterable[bytes], mode: int | None = None
    ) -> Written:
        """Write a file as a whole, all or nothing; directories are created. ``mode``: 0644 or the old file's."""
        with self._context.operation(actor, "files.write"):
            return files.write_file(self._context, actor, sandbox, path, chunks, mode)

    def list_directory(self, actor: Actor, sandbox: str, path: str) -> list[DirectoryEntry]:
        """List a directory of the sandbox, sorted by name."""
        with self._context.operation(actor, "files.list"):
            return files.list_directory(self._context, actor, sandbox, path)

    def baseline(self, actor: Actor, sandbox: str) -> Baseline:
        """Remember the tree as it is now, for ``changes``."""
        with self._context.operation(actor, "sandbox.baseline"):
            return baseline.remember(self._context, actor, sandbox)

    def changes(self, actor: Actor, sandbox: str, path: str | None = None) -> Changes:
        """Return what changed since the baseline, below ``path`` if given; ``conflict`` if none was remembered."""
        with self._context.operation(actor, "sandbox.changes"):
            return baseline.changes(self._context, actor, sandbox, path)

    # Speculation

    def dry_run(self, actor: Actor, sandbox: str, request: DryRun) -> DryRunResult:
        """Run a command in a throwaway copy, report what it changed, keep nothing."""
        with self._context.operation(actor, "sandbox.dry-run"):
            return run.dry_run(self._context, actor, sandbox, request)

    def speculate(self, actor: Actor, sandbox: str, request: Speculate) -> ChangesetDetail:
        """Run a command in a throwaway copy and stage what it changed (spec: speculation).

        Raises:
            FluxError: ``invalid``, ``not_found``, ``too_large`` (the workspace), ``exhausted`` (no space),
                ``unavailable`` (set-up failed).
        """
        with self._context.operation(actor, "sandbox.speculate"):
            return run.speculate(self._context, actor, sandbox, request)

    def list_changesets(
        self, actor: Actor, sandbox: str, limit: int = 100, cursor: str | None = None
    ) -> Page[Changeset]:
        """List a sandbox's changesets, newest first."""
        with self._context.operation(actor, "changeset.list"):
            return views.list_changesets(self._context, actor, sandbox, limit, cursor)

    def get_changeset(self, actor: Actor, sandbox: str, changeset: str) -> ChangesetDetail:
        """Return a changeset; ``not_found`` also when it belongs to another sandbox."""
        with self._context.operation(actor, "changeset.get"):
            return views.get_changeset(self._context, actor, sandbox, changeset)

    def diff(self, actor: Actor, sandbox: str, changeset: str, path: str | None = None) -> list[FileDiff]:
        """Return the differences of a changeset's entries, of ``path`` and what is below it if given."""
        with self._context.operation(actor, "changeset.diff"):
            return views.diff(self._context, actor, sandbox, changeset, path)

    def changeset_file(self, actor: Actor, sandbox: str, changeset: str, path: str) -> OpenFile:
        """Open the staged content of one file. The caller closes the descriptor."""
        with self._context.operation(actor, "changeset.file"):
            return views.staged_file(self._context, actor, sandbox, changeset, path)

    def approve(self, actor: Actor, sandbox: str, changeset: str, request: Approve) -> ChangesetDetail:
        """Approve a changeset, or the part of it that ``only`` selects (spec: speculation)."""
        with self._context.operation(actor, "changeset.approve"):
            return decide.approve(self._context, actor, sandbox, changeset, request)

    def reject(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> ChangesetDetail:
        """Reject a changeset and drop what it staged."""
        with self._context.operation(actor, "changeset.reject"):
            return decide.reject(self._context, actor, sandbox, changeset, request)

    def apply(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> ChangesetDetail:
        """Bring an approved changeset into the real sandbox, or change nothing (spec: speculation).

        Raises:
            FluxError: ``illegal_state``, ``expired``, ``conflict`` (drift, digest, another request),
                ``not_applicable`` (unstaged entries), ``exhausted``, ``unavailable``, ``unknown_outcome``.
        """
        with self._context.operation(actor, "changeset.apply"):
            return apply.apply(self._context, actor, sandbox, changeset, request)

    def revert(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> ChangesetDetail:
        """Make a pending changeset that holds the inverse of an applied one."""
        with self._context.operation(actor, "changeset.revert"):
            return revert.revert(self._context, actor, sandbox, changeset, request)

    def rerun(self, actor: Actor, sandbox: str, changeset: str, request: Decide) -> ChangesetDetail:
        """Repeat a changeset's command on the current base; the new changeset supersedes the old one."""
        with self._context.operation(actor, "changeset.rerun"):
            return rerun.rerun(self._context, actor, sandbox, changeset, request)

    def compare(self, actor: Actor, sandbox: str, changesets: Sequence[str]) -> Comparison:
        """Return changesets of one sandbox side by side."""
        with self._context.operation(actor, "changeset.compare"):
            return compare.compare(self._context, actor, sandbox, changesets)

    def export(self, actor: Actor, sandbox: str, changeset: str, form: Literal["patch", "tar"]) -> OpenFile:
        """Write a changeset out as a patch or a tar archive. The caller closes the descriptor."""
        from flux.engine.speculation import export

        with self._context.operation(actor, "changeset.export"):
            return export.export(self._context, actor, sandbox, changeset, form)

    def wait(self, actor: Actor, sandbox: str, changeset: str, timeout_seconds: float) -> ChangesetDetail:
        """Return a changeset when it is no longer pending, or as it is when the time is over."""
        with self._context.operation(actor, "changeset.wait"):
            return wait.wait(self._context, actor, sandbox, changeset, timeout_seconds)

    # Audit, keys, health

    def audit(
        self, actor: Actor, filters: AuditFilter, limit: int = 100, cursor: str | None = None
    ) -> Page[AuditEvent]:
        """List audit lines, oldest first. ``next_cursor`` is always set: later lines continue after it."""
        with self._context.operation(actor, "audit.list"):
            return views.audit(self._context, filters, limit, cursor)

    def wait_for_audit(
        self, actor: Actor, filters: AuditFilter, cursor: str | None, timeout_seconds: float
    ) -> Page[AuditEvent]:
        """List the audit lines after ``cursor`` (``None``: the log's end), waiting for the first if there are none."""
        with self._context.operation(actor, "audit.list"):
            return wait.wait_for_audit(self._context, filters, cursor, timeout_seconds)

    def create_key(self, actor: Actor, request: CreateKey) -> NewKey:
        """Issue a key; ``already_exists`` if a key in force has the name."""
        with self._context.operation(actor, "keys.create"):
            return keys.create(self._context, actor, request)

    def list_keys(self, actor: Actor) -> list[Key]:
        """List all keys, revoked ones too, oldest first."""
        with self._context.operation(actor, "keys.list"):
            return keys.every(self._context)

    def revoke_key(self, actor: Actor, key: str) -> Key:
        """Revoke a key by id or name; it stops working at once."""
        with self._context.operation(actor, "keys.revoke"):
            return keys.revoke(self._context, actor, key)

    def authenticate(self, token: str) -> Actor:
        """Return who a token belongs to; ``unauthenticated`` if to nobody."""
        return keys.authenticate(self._context, token)

    def doctor(self, actor: Actor) -> list[Check]:
        """Return what works on this machine, why not, and what would fix it."""
        with self._context.operation(actor, "doctor"):
            return [check for substrate in self._context.substrates.values() for check in substrate.check()]

    def health(self) -> Health:
        """Tell that the engine answers, and how much it holds."""
        return views.health(self._context)

    # The engine's own life

    def recover(self) -> Recovery:
        """Put right what a crash left behind. Called once, before anything else (spec: speculation)."""
        return recover.recover(self._context)

    def sweep(self) -> None:
        """Expire and delete what is due; speculate, list and get do it too, a daemon calls it now and then."""
        sweep.sweep(self._context)

    def operation(self, actor: Actor, name: str) -> AbstractContextManager[None]:
        """Run an operation that is not the engine's own as one of its: permitted, its errors Flux's, observed."""
        return self._context.operation(actor, name)

    def record(
        self, kind: AuditKind, actor: Actor, *, sandbox_id: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        """Write an audit line."""
        self._context.stores.audit.append(self._context.line(kind, actor, sandbox_id=sandbox_id, details=details))

    def append_audit(self, event: AuditEvent) -> None:
        """Write an audit line that is made already."""
        self._context.stores.audit.append(event)

    def close(self) -> None:
        """End every running execution and release the state directory. Idempotent."""
        self._context.close()
