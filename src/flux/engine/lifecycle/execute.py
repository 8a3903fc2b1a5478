"""Commands in the real sandbox: started with streams for the caller, or run to their end (spec: sandboxes)."""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
import select
import shlex
import signal
import struct
import termios
import time
from contextlib import ExitStack, suppress

from flux.core import access
from flux.core.access import Actor
from flux.core.audit import AuditKind
from flux.core.errors import Code, FluxError
from flux.core.paths import portable
from flux.core.requests import Exec, StartProcess
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import launch
from flux.engine.lifecycle.streams import Streams
from flux.engine.results import Ended, ExecResult, TerminalSize
from flux.ports.substrate import Command, Exit, Instance, Process

_LAST_MOMENT_MS = 250


class RunningExec:
    """A command that runs in the real sandbox.

    ``stdin``, ``stdout`` and ``stderr`` are the caller's ends of the pipes that were asked for, ``terminal`` the master
    of the terminal; each is ``None`` where there is none. They are the caller's to read, write and close.

    Args:
        process: the command.
        held: what it holds of the sandbox.
        deadline: until when it may run, in seconds of ``time.monotonic``; ``None``: as long as it likes.
        instance: the execution that it runs in.
    """

    def __init__(self, process: Process, held: ExitStack, deadline: float | None, instance: Instance) -> None:
        self.stdin: int | None = None
        self.stdout: int | None = None
        self.stderr: int | None = None
        self.terminal: int | None = None
        self.started = time.monotonic()
        self._process = process
        self._held = held
        self._deadline = deadline
        self._instance = instance
        self._killed = False
        self._ended: Ended | None = None
        #: It ended because its execution did (paused, killed), not by itself; known of a process
        #: without a deadline once ``wait`` returned.
        self.lost = False

    @property
    def pid(self) -> int:
        """The process id as the sandbox sees it."""
        return self._process.pid

    def wait(self, timeout: float | None = None) -> Ended | None:
        """Wait for the command to end, at most ``timeout`` seconds; ``None`` if it still runs.

        A command whose own time is over is killed with everything that came from it; who starts one must wait for it.
        """
        if self._ended is not None:
            return self._ended
        ended = self._process.wait(self._patience(timeout))
        timed_out = False
        if ended is None:
            if self._deadline is None or time.monotonic() < self._deadline:
                return None
            self._process.kill_tree()
            ended, timed_out = self._process.wait(), True
        endless = self._deadline is None
        self.lost = endless and not self._killed and _is_kill(ended) and _is_over(self._instance)
        self._ended = _ended(ended, timed_out, self.started)
        return self._ended

    def _patience(self, timeout: float | None) -> float | None:
        if self._deadline is None:
            return timeout
        left = self._deadline - time.monotonic()
        return max(left if timeout is None else min(left, timeout), 0.0)

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        self._process.signal(number)

    def kill(self) -> None:
        """Kill the command and everything that came from it."""
        self._killed = True
        self._process.kill_tree()

    def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""
        if self.terminal is not None:
            _set_size(self.terminal, size)

    def close(self) -> None:
        """Let the sandbox go; without a daemon that ends what the command left running. Idempotent."""
        if self._ended is None:
            with suppress(FluxError):
                self._process.kill_tree()
        self._held.close()


def start_exec(
    context: Context,
    actor: Actor,
    reference: str,
    request: Exec,
    given: tuple[int | None, int | None, int | None],
    terminal: TerminalSize | None,
) -> RunningExec:
    """Start a command whose streams the caller carries."""
    sandbox = context.sandbox(actor, reference)
    access.permit_direct_change(actor, bound=sandbox.layout == "bound")
    deadline = time.monotonic() + launch.timeout_seconds(context, request)
    launch.arguments(request)
    with ExitStack() as held:
        instance = _enter(context, sandbox, held)
        command = launch.command(sandbox, instance, request, terminal=terminal is not None)
        _record(context, actor, sandbox, launch.shown(request))
        return _spawned(instance, command, held, given, terminal, deadline)


def start_process(
    context: Context, actor: Actor, reference: str, request: StartProcess, terminal: TerminalSize | None
) -> RunningExec:
    """Start a program that runs until it ends or is killed, as one of the sandbox's users would start it."""
    sandbox = context.sandbox(actor, reference)
    access.permit_direct_change(actor, bound=sandbox.layout == "bound")
    launch.checked_arguments(request.argv)
    with ExitStack() as held:
        instance = _enter(context, sandbox, held)
        command = launch.process(sandbox, instance, request, terminal=terminal is not None)
        _record(context, actor, sandbox, shlex.join(request.argv))
        return _spawned(instance, command, held, (None, None, None), terminal, None)


def _spawned(
    instance: Instance,
    command: Command,
    held: ExitStack,
    given: tuple[int | None, int | None, int | None],
    terminal: TerminalSize | None,
    deadline: float | None,
) -> RunningExec:
    """Start a command; what is held for it goes to it."""
    own, child, close_child = _terminal(instance, command, terminal) if terminal else _pipes(given)
    try:
        process = instance.spawn(command, *child)
    except BaseException:
        _close(own)
        raise
    finally:
        _close(close_child)
    running = RunningExec(process, held.pop_all(), deadline, instance)
    if terminal:
        running.terminal = own[0]
    else:
        running.stdin, running.stdout, running.stderr = own
    return running


def execute(context: Context, actor: Actor, reference: str, request: Exec) -> ExecResult:
    """Run a command to its end."""
    sandbox = context.sandbox(actor, reference)
    access.permit_direct_change(actor, bound=sandbox.layout == "bound")
    seconds = launch.timeout_seconds(context, request)
    launch.arguments(request)
    streams = Streams(context.settings.exec_output_bytes, _stdin(request))
    with ExitStack() as held:
        try:
            instance = _enter(context, sandbox, held)
            command = launch.command(sandbox, instance, request)
            _record(context, actor, sandbox, launch.shown(request))
            process = instance.spawn(command, *streams.child)
        except BaseException:
            streams.abandon()
            raise
        started = time.monotonic()
        streams.start()
        ended = process.wait(seconds)
        if ended is None:
            process.kill_tree()
        result = _ended(ended or process.wait(), ended is None, started)
        stdout, stderr = streams.settle()
    if not instance.alive():
        streams.finish()
    return ExecResult(
        exit_code=result.exit_code,
        signal=result.signal,
        timed_out=result.timed_out,
        stdout=stdout,
        stderr=stderr,
        duration_ms=result.duration_ms,
    )


def _enter(context: Context, sandbox: Sandbox, held: ExitStack) -> Instance:
    held.enter_context(context.locks.sandbox(sandbox.id))
    return held.enter_context(
        context.instances.live(sandbox.id, sandbox.generation, lambda: launch.start(context, sandbox))
    )


def _is_kill(ended: Exit | None) -> bool:
    return ended is None or ended.signal == signal.SIGKILL


def _is_over(instance: Instance) -> bool:
    """Tell whether an execution ended: its init is the last of its processes to go, so it is given a moment."""
    if not instance.alive():
        return True
    poll = select.poll()
    poll.register(instance.end_descriptor, select.POLLIN)
    return bool(poll.poll(_LAST_MOMENT_MS))


def _record(context: Context, actor: Actor, sandbox: Sandbox, shown: str) -> None:
    details = {"command": portable(shown)}
    context.stores.audit.append(context.line(AuditKind.SANDBOX_EXEC, actor, sandbox_id=sandbox.id, details=details))


def _stdin(request: Exec) -> bytes | None:
    if request.stdin is not None and request.stdin_base64 is not None:
        raise FluxError(Code.INVALID, "cannot run a command: give at most one of stdin and stdin_base64")
    if request.stdin_base64 is None:
        return None if request.stdin is None else request.stdin.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(request.stdin_base64, validate=True)
    except binascii.Error as error:
        raise FluxError(Code.INVALID, "cannot run a command: stdin_base64 is not base64") from error


def _ended(ended: Exit | None, timed_out: bool, started: float) -> Ended:
    ended = ended or Exit(signal=9)
    return Ended(
        exit_code=ended.code,
        signal=ended.signal,
        timed_out=timed_out,
        duration_ms=int((time.monotonic() - started) * 1000),
    )


_Ends = tuple[int | None, ...]


def _pipes(given: tuple[int | None, int | None, int | None]) -> tuple[_Ends, tuple[int, int, int], _Ends]:
    """Return the caller's ends, the command's three descriptors, and which of those to close here."""
    own: list[int | None] = [None, None, None]
    child: list[int] = [0, 0, 0]
    for number, descriptor in enumerate(given):
        if descriptor is not None:
            child[number] = descriptor
            continue
        reader, writer = os.pipe2(os.O_CLOEXEC)
        own[number], child[number] = (writer, reader) if number == 0 else (reader, writer)
    made = tuple(end for end, descriptor in zip(child, given, strict=True) if descriptor is None)
    return tuple(own), (child[0], child[1], child[2]), made


def _terminal(instance: Instance, command: Command, size: TerminalSize) -> tuple[_Ends, tuple[int, int, int], _Ends]:
    master, slave = instance.open_terminal(command.uid)
    _set_size(master, size)
    return (master,), (slave, slave, slave), (slave,)


def _set_size(terminal: int, size: TerminalSize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def _close(descriptors: _Ends) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
