"""Connections to ports of sandboxes on other nodes: bytes in messages of a WebSocket between control plane and node.

Only bytes go through, so that what a caller sends and what authorizes the control plane at the node never meet.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from anyio import CancelScope, create_task_group, move_on_after
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from flux.api import wire
from flux.api.e2b.idle import Idle
from flux.api.operations import OPERATIONS, SANDBOX
from flux.api.rest.routed import headers_of
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.rest.forward import Forwarder
    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.access import Actor
    from flux.core.control import Located

ROUTE = SANDBOX + "/ports/{port:int}"
_PIECE_BYTES = 64 * 1024
_MESSAGES_AHEAD = 4
_CONNECT_SECONDS = 10
_CLOSE_SECONDS = 5.0
#: A node gives up later than its control plane, which knows why.
_IDLE_SECONDS = 3600.0
_GONE = (ConnectionError, WebSocketDisconnect)


@asynccontextmanager
async def tunnel(forwarder: Forwarder, located: Located, actor: Actor, port: int) -> AsyncIterator[socket.socket]:
    """Give a connection to a port of a sandbox on another node; the caller closes it.

    Raises:
        FluxError: what the node refused with; ``unavailable``.
    """
    far = await _connected(forwarder, located, actor, port)
    near, given = socket.socketpair()

    async def receive() -> bytes | None:
        try:
            message = await far.recv()
        except ConnectionClosed:
            return None
        return message.encode() if isinstance(message, str) else message

    async def send(data: bytes) -> None:
        try:
            await far.send(data)
        except ConnectionClosed as error:
            raise ConnectionError("the node closed the connection") from error

    try:
        async with create_task_group() as group:
            # The caller may read what came last as slowly as it likes.
            group.start_soon(_splice, near, receive, send, Idle(math.inf), math.inf)
            yield given
            group.cancel_scope.cancel()
    finally:
        near.close()
        with CancelScope(shield=True), move_on_after(_CLOSE_SECONDS):
            await far.close()


async def _connected(forwarder: Forwarder, located: Located, actor: Actor, port: int) -> ClientConnection:
    path = ROUTE.replace("{sandbox}", quote(f"{located.sandbox_id}.{located.generation}"))
    options: dict[str, Any] = {
        "additional_headers": headers_of(located, actor),
        "compression": None,
        "max_queue": _MESSAGES_AHEAD,
        "open_timeout": _CONNECT_SECONDS,
        "ping_interval": None,
        "proxy": None,
        "ssl": forwarder.context(located),
    }
    url = "ws" + located.address.rstrip("/").removeprefix("http") + path.replace("{port:int}", str(port))
    try:
        return await connect(url, **options)
    except InvalidStatus as error:
        raise wire.decode_error(bytes(error.response.body or b"")) or FluxError(
            Code.INTERNAL,
            f"cannot connect to port {port}: the node {located.node} answered with {error.response.status_code}",
        ) from None
    except (OSError, InvalidHandshake) as error:
        raise FluxError(
            Code.UNAVAILABLE, f"cannot reach the node {located.node}: nothing was changed; try again"
        ) from error


class NodePort:
    """Answers the WebSocket on a node.

    Args:
        gate: the node's gate.
        threads: where calls run.
    """

    def __init__(self, gate: Gate, threads: Threads) -> None:
        self._gate = gate
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check who calls, connect, then carry bytes until either side ends."""
        scope["state"]["operation"] = "sandbox.port"
        sandbox, port = scope["path_params"]["sandbox"], scope["path_params"]["port"]
        actor = await self._threads.quick(self._admit, scope, sandbox)
        scope["state"]["actor"] = actor
        connection = await self._threads.connection(self._gate.platform.connect_port, actor, sandbox, port)
        near = WebSocket(scope, receive, send)
        try:
            await near.accept()
            await _splice(connection, _receiver(near), near.send_bytes, Idle(_IDLE_SECONDS), 0.0)
            await near.close()
        except (WebSocketDisconnect, RuntimeError):
            return  # the control plane was faster
        finally:
            connection.close()

    def _admit(self, scope: Scope, sandbox: str) -> Actor:
        actor = self._gate.admit(scope, OPERATIONS["sandbox.exec"], sandbox)
        if actor.sandbox_id != sandbox.partition(".")[0]:
            raise FluxError(Code.DENIED, "cannot serve this request: it is of nobody who may use the sandbox's ports")
        return actor


def _receiver(near: WebSocket) -> Callable[[], Awaitable[bytes | None]]:
    async def receive() -> bytes | None:
        message = await near.receive()
        return message.get("bytes") or None

    return receive


async def _splice(
    connection: socket.socket,
    receive: Callable[[], Awaitable[bytes | None]],
    send: Callable[[bytes], Awaitable[None]],
    idle: Idle,
    linger_seconds: float,
) -> None:
    """Carry bytes both ways until one side ends; what came last stays to be read for ``linger_seconds``."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_PIECE_BYTES)

    async def outward(scope: CancelScope) -> None:
        with suppress(*_GONE):
            while data := await reader.read(_PIECE_BYTES):
                await send(data)
                idle.touch()
        scope.cancel()

    try:
        with idle.scope:
            async with create_task_group() as group:
                group.start_soon(outward, group.cancel_scope)
                with suppress(*_GONE):
                    while (data := await receive()) is not None:
                        writer.write(data)
                        await writer.drain()
                        idle.touch()
                    writer.close()
                    with move_on_after(linger_seconds):
                        await writer.wait_closed()
                group.cancel_scope.cancel()
    finally:
        writer.transport.abort()
