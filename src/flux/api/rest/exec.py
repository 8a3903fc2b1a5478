"""``POST …/exec``: one reply at the command's end, or a stream of events. A caller that hangs up kills the command."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from anyio import CancelScope, Lock, create_task_group
from starlette.requests import Request
from starlette.responses import Response

from flux.api import present, wire
from flux.api.operations import OPERATIONS
from flux.api.rest.bodies import EXEC_BODY_BYTES_MAX, json_reply
from flux.api.rest.endpoint import Endpoint
from flux.api.rest.streams import Carrier, Stream
from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.output import Capture
from flux.core.requests import Exec
from flux.engine.results import Ended, ExecResult

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.engine.lifecycle.execute import RunningExec

Carry: TypeAlias = Callable[[Carrier, "Scope", "Receive", "Send"], Awaitable[None]]

NDJSON = "application/x-ndjson"


class ExecEndpoint(Endpoint):
    """Runs commands whose callers may hang up.

    Args:
        output_bytes: how much of each output a reply holds.
    """

    def __init__(self, gate: Gate, threads: Threads, output_bytes: int) -> None:
        super().__init__(gate, threads, OPERATIONS["sandbox.exec"])
        self._output_bytes = output_bytes

    async def answer(self, request: Request, actor: Actor) -> Response:
        """Start the command and return the reply that carries it."""
        arguments = await self.arguments(request, EXEC_BODY_BYTES_MAX)
        body: Exec = arguments.body
        data = given_input(body)
        running = await self._threads.slow(self._start, actor, arguments.path["sandbox"], body)
        carry = _streamed if body.stream else partial(_collected, self._output_bytes, self._threads)
        return _Reply(Carrier(running, self._threads), data, carry)

    def _start(self, actor: Actor, sandbox: str, body: Exec) -> RunningExec:
        return self._platform.start_exec(actor, sandbox, body)


class _Reply(Response):
    """The reply to one exec, as long as the command runs."""

    def __init__(self, carrier: Carrier, data: bytes, carry: Carry) -> None:
        self.status_code = 200
        self.background = None
        self._carrier = carrier
        self._data = data
        self._carry = carry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry the command to its end, or kill it when the caller hangs up."""
        try:
            async with create_task_group() as group:
                group.start_soon(self._feed)
                group.start_soon(_until_hung_up, receive, group.cancel_scope)
                await self._carry(self._carrier, scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            await self._carrier.release()

    async def _feed(self) -> None:
        """Give the command the input that came with the request, then the end of input."""
        await self._carrier.input.write(self._data)
        await self._carrier.input.end()


async def _until_hung_up(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _collected(
    limit: int, threads: Threads, carrier: Carrier, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send one reply at the end."""
    captures: dict[Stream, Capture] = {"stdout": Capture(limit), "stderr": Capture(limit)}

    async def keep(stream: Stream, data: bytes) -> None:
        captures[stream].feed(data)

    ended = await carrier.carry(keep)
    body = await threads.quick(_encode, ended, captures)
    await json_reply(body, 200)(scope, receive, send)


def _encode(ended: Ended, captures: dict[Stream, Capture]) -> bytes:
    result = ExecResult(
        exit_code=ended.exit_code,
        signal=ended.signal,
        timed_out=ended.timed_out,
        stdout=captures["stdout"].result(),
        stderr=captures["stderr"].result(),
        duration_ms=ended.duration_ms,
    )
    return wire.encode_reply(present.execution(result))


async def _streamed(carrier: Carrier, scope: Scope, receive: Receive, send: Send) -> None:
    """Send events as they happen, one line each."""
    turn = Lock()

    async def event(**fields: Any) -> None:
        async with turn:
            line = msgspec.json.encode(fields) + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})

    async def output(stream: Stream, data: bytes) -> None:
        await event(event=stream, data=base64.b64encode(data).decode("ascii"))

    headers = [(b"content-type", NDJSON.encode("ascii"))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await event(event="start")
    ended = await carrier.carry(output)
    await event(event="exit", **msgspec.structs.asdict(ended))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def given_input(request: Exec) -> bytes:
    """Return the input that an exec request carries.

    Raises:
        FluxError: ``invalid`` if it carries two, or what is not base64.
    """
    if request.stdin is not None and request.stdin_base64 is not None:
        raise FluxError(Code.INVALID, "cannot run a command: give at most one of stdin and stdin_base64")
    if request.stdin_base64 is None:
        return (request.stdin or "").encode("utf-8")
    try:
        return base64.b64decode(request.stdin_base64, validate=True)
    except ValueError:
        raise FluxError(Code.INVALID, "cannot run a command: stdin_base64 is not base64") from None
