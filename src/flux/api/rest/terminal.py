"""The WebSocket that carries a command's streams both ways: shells with a terminal, and long input without one."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
from anyio import CancelScope, Lock, create_task_group
from starlette.websockets import WebSocket, WebSocketDisconnect

from flux.api import wire
from flux.api.operations import OPERATIONS, SANDBOX
from flux.api.rest.access import header
from flux.api.rest.streams import Carrier, Stream
from flux.core.errors import Code, FluxError
from flux.core.requests import Exec, Request
from flux.engine.results import TerminalSize

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.access import Actor
    from flux.core.control import Located
    from flux.engine.lifecycle.execute import RunningExec

ROUTE = SANDBOX + "/pty"
DESCRIPTION = (
    'The first message is JSON text: `{"exec": {…as for exec}, "terminal": {"rows", "columns"} | null}`. Then binary '
    'messages are the command\'s input; `{"event": "eof"}` ends it, `{"event": "resize", "rows", "columns"}` and '
    '`{"event": "signal", "name": "INT"}` do what they say. Binary messages from the server begin with one byte, 1 for '
    "stdout and 2 for stderr; text messages are the events `start`, `taken` (the command took `bytes` of its input: "
    "send no more than 256 KiB ahead), `exit` (as for exec) and `error`. A caller that hangs up kills the command. "
    "Roles are those of exec."
)
FIRST_BYTES: dict[Stream, bytes] = {"stdout": b"\x01", "stderr": b"\x02"}
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2")}
_CLOSED_BY_POLICY = 1008
_CLOSED_NORMALLY = 1000


class Size(Request):
    """The size of a terminal in characters."""

    rows: int
    columns: int


class Opening(Request):
    """The first message: the command, and the size of its terminal if it is to have one."""

    exec: Exec
    terminal: Size | None = None


class Control(Request):
    """A later message of text."""

    event: Literal["eof", "resize", "signal"]
    rows: int | None = None
    columns: int | None = None
    name: str | None = None


class TerminalEndpoint:
    """Answers the WebSocket."""

    def __init__(self, gate: Gate, threads: Threads) -> None:
        self._gate = gate
        self._platform = gate.platform
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check who calls, then carry one command."""
        scope["state"]["operation"] = "sandbox.exec"
        _refuse_foreign_origin(scope)
        actor, located = await self._threads.quick(self._admit, scope)
        scope["state"]["actor"] = actor
        if located is not None and self._gate.forwarder is not None:
            from flux.api.rest.relay import relay

            await relay(self._gate.forwarder, located, actor, scope, receive, send)
            return
        await self._carry(actor, scope, receive, send)

    def _admit(self, scope: Scope) -> tuple[Actor, Located | None]:
        operation, sandbox = OPERATIONS["sandbox.exec"], scope["path_params"]["sandbox"]
        actor = self._gate.admit(scope, operation, sandbox)
        return actor, self._gate.elsewhere(actor, operation, sandbox)

    async def _carry(self, actor: Actor, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        try:
            opening = _decode(await socket.receive_text(), Opening)
            size = None if opening.terminal is None else _size(opening.terminal.rows, opening.terminal.columns)
            running = await self._threads.slow(self._start, actor, scope["path_params"]["sandbox"], opening.exec, size)
            await _Session(socket, Carrier(running, self._threads)).run()
        except FluxError as error:
            scope["state"]["outcome"] = error.code.value
            await _tell(socket, error)
        except (WebSocketDisconnect, KeyError):
            scope["state"]["outcome"] = "aborted"

    def _start(self, actor: Any, sandbox: str, request: Exec, size: TerminalSize | None) -> RunningExec:
        return self._platform.start_exec(actor, sandbox, request, terminal=size)


def _refuse_foreign_origin(scope: Scope) -> None:
    """Refuse a page of another site; it could not know a token, but it shall not even get to ask."""
    origin = header(scope, b"origin")
    if origin is not None and urlsplit(origin).netloc != header(scope, b"host"):
        raise FluxError(Code.DENIED, "cannot open a WebSocket for a page of another site")


def _decode(text: str, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FluxError(Code.INVALID, f"cannot read the message: {error}") from None


def _size(rows: int | None, columns: int | None) -> TerminalSize:
    if rows is None or columns is None or not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise FluxError(Code.INVALID, "cannot size the terminal: rows and columns are numbers from 1 to 65535")
    return TerminalSize(rows=rows, columns=columns)


async def _tell(socket: WebSocket, error: FluxError) -> None:
    try:
        await socket.send_text('{"event":"error","error":' + wire.encode_error(error).decode("utf-8") + "}")
        await socket.close(_CLOSED_BY_POLICY)
    except (WebSocketDisconnect, RuntimeError, OSError):
        return


class _Session:
    """One command on one WebSocket."""

    def __init__(self, socket: WebSocket, carrier: Carrier) -> None:
        self._socket = socket
        self._carrier = carrier
        self._turn = Lock()

    async def run(self) -> None:
        """Carry the command to its end, or kill it when the caller hangs up."""
        try:
            async with create_task_group() as group:
                group.start_soon(self._listen, group.cancel_scope)
                await self._event({"event": "start"})
                ended = await self._carrier.carry(self._output)
                await self._event({"event": "exit", **msgspec.structs.asdict(ended)})
                group.cancel_scope.cancel()
        finally:
            await self._carrier.release()
        await self._socket.close(_CLOSED_NORMALLY)

    async def _output(self, stream: Stream, data: bytes) -> None:
        async with self._turn:
            await self._socket.send_bytes(FIRST_BYTES[stream] + data)

    async def _event(self, fields: dict[str, Any]) -> None:
        async with self._turn:
            await self._socket.send_text(msgspec.json.encode(fields).decode("utf-8"))

    async def _listen(self, scope: CancelScope) -> None:
        """Take the caller's messages until it hangs up."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                scope.cancel()
                return
            if message.get("bytes") is not None:
                await self._carrier.input.write(message["bytes"])
                await self._event({"event": "taken", "bytes": len(message["bytes"])})
                continue
            try:
                await self._obey(_decode(message["text"], Control))
            except FluxError as error:
                await self._event({"event": "error", "error": msgspec.Raw(wire.encode_error(error))})

    async def _obey(self, control: Control) -> None:
        if control.event == "eof":
            await self._carrier.input.end()
        elif control.event == "resize":
            self._carrier.running.resize(_size(control.rows, control.columns))
        elif control.name in SIGNALS:
            self._carrier.running.signal(SIGNALS[control.name])
        else:
            raise FluxError(Code.INVALID, f"cannot send that signal: it is one of {', '.join(SIGNALS)}")
