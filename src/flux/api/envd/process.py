"""The process service: start, attach, list, feed, signal (spec: e2b, §4)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from flux.api.envd.methods import ClientStream, Emit, Message, Method, ServerStream, Unary
from flux.api.envd.processes import Selector
from flux.core.errors import Code, FluxError
from flux.core.requests import StartProcess
from flux.engine.results import Ended, TerminalSize

if TYPE_CHECKING:
    from flux.api.envd.call import Call
    from flux.api.envd.processes import Process

_CELLS_MAX = 65535
_COLUMNS, _ROWS = 80, 24
#: What a start that found no running sandbox any more says, whatever stopped it meanwhile.
_STOPPED = (Code.NOT_FOUND, Code.ILLEGAL_STATE, Code.FENCED)


# Messages


class Empty(Message, frozen=True):
    """A message without content."""


class ProcessConfig(Message, frozen=True):
    """What to run."""

    cmd: str = ""
    args: tuple[str, ...] = ()
    envs: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None


class PtySize(Message, frozen=True):
    """The size of a terminal in characters."""

    cols: int = 0
    rows: int = 0


class Pty(Message, frozen=True):
    """That the process has a terminal."""

    size: PtySize | None = None


class StartRequest(Message, frozen=True):
    """Start a process and listen to it. ``stdin`` absent: its input stays open."""

    process: ProcessConfig = ProcessConfig()
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool | None = None


class ProcessSelector(Message, frozen=True):
    """Which process: its pid or its tag."""

    pid: int | None = None
    tag: str | None = None


class ConnectRequest(Message, frozen=True):
    """Listen to a process that runs, or learn how it ended."""

    process: ProcessSelector = ProcessSelector()


class StartEvent(Message, frozen=True):
    """The process runs."""

    pid: int


class DataEvent(Message, frozen=True):
    """Some output: one of the three."""

    stdout: bytes | None = None
    stderr: bytes | None = None
    pty: bytes | None = None


class EndEvent(Message, frozen=True):
    """How it ended. ``exited``: by itself, and not by a signal."""

    exit_code: int = 0
    exited: bool = False
    status: str = ""
    error: str | None = None


class ProcessEvent(Message, frozen=True):
    """One of the four."""

    start: StartEvent | None = None
    data: DataEvent | None = None
    end: EndEvent | None = None
    keepalive: Empty | None = None


class EventMessage(Message, frozen=True):
    """What the streams consist of."""

    event: ProcessEvent


class ProcessInfo(Message, frozen=True):
    """A process that runs."""

    config: ProcessConfig
    pid: int
    tag: str | None = None


class ListReply(Message, frozen=True):
    """All that run."""

    processes: tuple[ProcessInfo, ...] = ()


class ProcessInput(Message, frozen=True):
    """Input: to a pipe or to a terminal."""

    stdin: bytes | None = None
    pty: bytes | None = None


class SendInputRequest(Message, frozen=True):
    """Write input."""

    process: ProcessSelector = ProcessSelector()
    input: ProcessInput = ProcessInput()


class StreamInputStart(Message, frozen=True):
    """To which process the rest of a stream goes."""

    process: ProcessSelector = ProcessSelector()


class StreamInputData(Message, frozen=True):
    """Input in a stream."""

    input: ProcessInput = ProcessInput()


class StreamInputRequest(Message, frozen=True):
    """One of the three; the first of a stream is ``start``."""

    start: StreamInputStart | None = None
    data: StreamInputData | None = None
    keepalive: Empty | None = None


class SendSignalRequest(Message, frozen=True):
    """Send a signal."""

    process: ProcessSelector = ProcessSelector()
    signal: Literal["SIGNAL_UNSPECIFIED", "SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 0, 9, 15] = "SIGNAL_UNSPECIFIED"


class UpdateRequest(Message, frozen=True):
    """Change the size of a process's terminal."""

    process: ProcessSelector = ProcessSelector()
    pty: Pty | None = None


# Methods


async def start(call: Call, request: StartRequest, emit: Emit) -> None:
    """Start a process and send what it does until it ends; it lives on if the caller leaves."""
    config = request.process
    wanted = StartProcess(argv=(config.cmd, *config.args), environment=config.envs, cwd=config.cwd, user=call.as_user)
    terminal = None if request.pty is None else _size(request.pty)
    try:
        process = await call.tables.processes.start(
            call, wanted, terminal, request.tag, stdin=request.stdin is not False
        )
    except FluxError as error:
        raise _stopped() if error.code in _STOPPED else error from None
    await _follow(process, emit)


async def connect(call: Call, request: ConnectRequest, emit: Emit) -> None:
    """Send what a process does from now on until it ends, or how it ended."""
    named = _selector(request.process)
    try:
        process = call.tables.processes.find(call.sandbox, named)
    except FluxError:
        remembered = call.tables.processes.find_over(call.sandbox, named)
        if remembered is None:
            raise
        await emit(EventMessage(event=ProcessEvent(start=StartEvent(pid=remembered.pid))))
        await emit(EventMessage(event=ProcessEvent(end=end_of(remembered.ended))))
        return
    await _follow(process, emit)


async def _follow(process: Process, emit: Emit) -> None:
    with process.hub.listen() as pieces:
        await emit(EventMessage(event=ProcessEvent(start=StartEvent(pid=process.pid))))
        async for piece in pieces:
            data = msgspec.convert({piece.output: piece.data}, DataEvent)
            await emit(EventMessage(event=ProcessEvent(data=data)))
    if process.ended is None or process.lost:
        raise _stopped()
    await emit(EventMessage(event=ProcessEvent(end=end_of(process.ended))))


def end_of(ended: Ended) -> EndEvent:
    """Return the event that tells how a process ended."""
    if ended.signal is not None:
        said = f"signal: {(signal.strsignal(ended.signal) or str(ended.signal)).lower()}"
        return EndEvent(exit_code=-1, exited=False, status=said, error=said)
    code = ended.exit_code or 0
    said = f"exit status {code}"
    return EndEvent(exit_code=code, exited=True, status=said, error=said if code else None)


def keepalive() -> Message:
    """Return what a silent stream sends now and then."""
    return EventMessage(event=ProcessEvent(keepalive=Empty()))


async def list_processes(call: Call, request: Empty) -> ListReply:
    """Return the processes that run."""
    return ListReply(processes=tuple(_info(process) for process in call.tables.processes.living(call.sandbox)))


def _info(process: Process) -> ProcessInfo:
    asked = process.request
    config = ProcessConfig(cmd=asked.argv[0], args=asked.argv[1:], envs=asked.environment, cwd=asked.cwd)
    return ProcessInfo(config=config, pid=process.pid, tag=process.tag)


async def send_input(call: Call, request: SendInputRequest) -> Empty:
    """Write input; returns when the process's pipe or terminal has all of it."""
    await _write(_found(call, request.process), request.input)
    return Empty()


async def stream_input(call: Call, messages: AsyncIterator[StreamInputRequest]) -> Empty:
    """Write input as it comes."""
    process: Process | None = None
    async for message in messages:
        if message.start is not None:
            process = _found(call, message.start.process)
        elif message.data is not None:
            if process is None:
                raise FluxError(Code.INVALID, "cannot tell which process: the first message of the stream names it")
            await _write(process, message.data.input)
    return Empty()


async def _write(process: Process, given: ProcessInput) -> None:
    data = given.pty if process.input.terminal else given.stdin
    if data is None:
        kind = "a terminal: write to its pty" if process.input.terminal else "no terminal: write to its stdin"
        raise FluxError(Code.ILLEGAL_STATE, f"cannot write to the process {process.pid} so: it has {kind}")
    await process.input.write(data)


async def send_signal(call: Call, request: SendSignalRequest) -> Empty:
    """Signal a process; SIGKILL ends all that came from it, too."""
    process = _found(call, request.process)
    if request.signal in ("SIGNAL_SIGKILL", signal.SIGKILL):
        await call.tables.processes.kill(call, process)
    elif request.signal in ("SIGNAL_SIGTERM", signal.SIGTERM):
        await call.threads.quick(process.running.signal, signal.SIGTERM)
    else:
        raise FluxError(Code.INVALID, "cannot send that signal: it is SIGNAL_SIGTERM or SIGNAL_SIGKILL")
    return Empty()


async def close_stdin(call: Call, request: ConnectRequest) -> Empty:
    """Let a process see the end of its input."""
    process = _found(call, request.process)
    if process.input.terminal:
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot close the input of the process {process.pid}: it has a terminal; write the character 4 (Ctrl-D)",
        )
    process.input.close()
    return Empty()


async def update(call: Call, request: UpdateRequest) -> Empty:
    """Change the size of a terminal."""
    process = _found(call, request.process)
    if not process.input.terminal or request.pty is None:
        raise FluxError(Code.ILLEGAL_STATE, f"cannot resize the process {process.pid}: it has no terminal, or no size")
    process.resize(_size(request.pty))
    return Empty()


def _found(call: Call, selector: ProcessSelector) -> Process:
    return call.tables.processes.find(call.sandbox, _selector(selector))


def _selector(selector: ProcessSelector) -> Selector:
    return Selector(pid=selector.pid, tag=selector.tag)


def _size(pty: Pty) -> TerminalSize:
    size = pty.size or PtySize()
    columns, rows = size.cols or _COLUMNS, size.rows or _ROWS
    if not (0 < columns <= _CELLS_MAX and 0 < rows <= _CELLS_MAX):
        raise FluxError(Code.INVALID, f"cannot size the terminal: cols and rows are numbers from 1 to {_CELLS_MAX}")
    return TerminalSize(rows=rows, columns=columns)


def _stopped() -> FluxError:
    return FluxError(
        Code.UNAVAILABLE, "cannot go on with the process: the sandbox stopped, or was paused, and its processes with it"
    )


METHODS: dict[str, Method] = {
    "Start": ServerStream(StartRequest, start, keepalive),
    "Connect": ServerStream(ConnectRequest, connect, keepalive),
    "List": Unary(Empty, list_processes),
    "SendInput": Unary(SendInputRequest, send_input),
    "StreamInput": ClientStream(StreamInputRequest, stream_input),
    "SendSignal": Unary(SendSignalRequest, send_signal),
    "CloseStdin": Unary(ConnectRequest, close_stdin),
    "Update": Unary(UpdateRequest, update),
}
