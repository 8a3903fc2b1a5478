"""One HTTP request carried to what listens in a sandbox, and its reply back: both at once, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import h11
from anyio import CancelScope, create_task_group

from flux.api.e2b import passing
from flux.api.e2b.idle import Idle
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: All headers of a reply together.
_HEADER_BYTES_MAX = 64 * 1024
_PIECE_BYTES = 64 * 1024
BAD_REPLY = "bad-reply"


class Exchange:
    """One request and its reply, over a connection of its own.

    Args:
        scope: the caller's request.
        reader: what comes from the sandbox.
        writer: what goes there.
        idle_seconds: how long nothing may pass.
    """

    def __init__(
        self, scope: Scope, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_seconds: float
    ) -> None:
        self._scope = scope
        self._reader = reader
        self._writer = writer
        self._idle = Idle(idle_seconds)
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADER_BYTES_MAX)
        self._begun = False
        self._finished = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Carry both to their ends; a caller that hangs up ends it.

        Raises:
            FluxError: ``unavailable`` if there is no reply that HTTP knows.
            ConnectionError: the reply broke off after it had begun.
        """
        with self._idle.scope:
            await self._carry(receive, send)
        if self._idle.over:
            raise self._broken("nothing passed for too long")

    async def _carry(self, receive: Receive, send: Send) -> None:
        async with create_task_group() as group:
            group.start_soon(self._request, receive, group.cancel_scope)
            await self._reply(send)
            group.cancel_scope.cancel()

    async def _request(self, receive: Receive, scope: CancelScope) -> None:
        """Send the request; when it is sent, wait for the caller to hang up."""
        headers = self._scope["headers"]
        whole = passing.inward(headers, _address(self._scope), self._scope["scheme"]) + passing.body_of(headers)
        await self._write(h11.Request(method=self._scope["method"], target=target_of(self._scope), headers=whole))
        while (message := await receive())["type"] == "http.request":
            if message.get("body"):
                await self._write(h11.Data(data=message["body"]))
            if not message.get("more_body", False):
                await self._write(h11.EndOfMessage())
        scope.cancel()

    async def _write(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of the request; what the server does not read any more is dropped, its reply says why."""
        if self._wire.our_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            return
        data = self._wire.send(event) or b""
        for start in range(0, len(data), _PIECE_BYTES):
            with contextlib.suppress(ConnectionError):
                self._writer.write(data[start : start + _PIECE_BYTES])
                await self._writer.drain()
            self._idle.touch()

    async def _reply(self, send: Send) -> None:
        try:
            while not self._finished:
                event = self._wire.next_event()
                if event is h11.NEED_DATA:
                    self._wire.receive_data(await self._reader.read(_PIECE_BYTES))
                    self._idle.touch()
                else:
                    await self._tell(event, send)
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise self._broken(str(error)) from error

    async def _tell(self, event: object, send: Send) -> None:
        if isinstance(event, h11.Response):
            self._begun = True
            headers = passing.outward(event.headers)
            await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            self._idle.touch()
        elif isinstance(event, h11.EndOfMessage):
            self._finished = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectionError("the connection was closed before a reply")

    def _broken(self, reason: str) -> Exception:
        if self._begun:
            return ConnectionError(f"the port's reply broke off: {reason}")
        return FluxError(
            Code.UNAVAILABLE,
            f"cannot read the reply of the port: {reason}; look at what listens there",
            {"reason": BAD_REPLY},
        )


async def exchange(connection: socket.socket, scope: Scope, receive: Receive, send: Send, idle_seconds: float) -> None:
    """Carry one HTTP request over a connection, which is closed at the end; see ``Exchange.run``."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_PIECE_BYTES)
    try:
        await Exchange(scope, reader, writer, idle_seconds).run(receive, send)
    finally:
        # Not waited for: what the sandbox does not read any more is nobody's.
        writer.transport.abort()


def target_of(scope: Scope) -> bytes:
    """Return what a request asks for, as it was written; the caller saw to its being a path."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + (b"?" + query if query else b"")


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return None if client is None else str(client[0])
