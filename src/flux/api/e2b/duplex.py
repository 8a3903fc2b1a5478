"""One WebSocket carried to what listens in a sandbox, message by message, both ways."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from anyio import CancelScope, create_task_group, move_on_after
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode
from websockets.uri import WebSocketURI

from flux.api.e2b import passing
from flux.api.e2b.exchange import BAD_REPLY
from flux.api.e2b.idle import Idle
from flux.api.rest.access import header
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from websockets.http11 import Response

#: Of what a sandbox sends; what callers send is bounded where it comes in.
_MESSAGE_BYTES_MAX = 16 * 1024 * 1024
_MESSAGES_AHEAD = 4
_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
#: What stands for a close that has no code, and for a connection that just broke; neither may be sent.
_UNSAYABLE = frozenset({CloseCode.NO_STATUS_RCVD, CloseCode.ABNORMAL_CLOSURE, CloseCode.TLS_HANDSHAKE})


async def duplex(connection: socket.socket, scope: Scope, receive: Receive, send: Send, idle_seconds: float) -> None:
    """Carry one WebSocket over a connection, which is closed at the end.

    A server that refuses it is heard with its own status and body.

    Raises:
        FluxError: ``unavailable`` if what listens speaks no WebSocket.
    """
    far = await _made(connection, scope)
    try:
        try:
            await _opened(far, scope)
        except InvalidStatus as error:
            await _refused(error.response, send)
            return
        near = WebSocket(scope, receive, send)
        await near.receive()
        given = [] if far.response is None else _raw(far.response)
        await near.accept(far.subprotocol, passing.without_handshake(passing.outward(given)))
        await _carried(near, far, Idle(idle_seconds))
    finally:
        with CancelScope(shield=True), move_on_after(_CLOSE_SECONDS):
            await far.close()
        far.transport.abort()


async def _made(connection: socket.socket, scope: Scope) -> ClientConnection:
    protocol = ClientProtocol(_uri(scope), subprotocols=scope.get("subprotocols") or None, max_size=_MESSAGE_BYTES_MAX)
    options: dict[str, Any] = {
        "ping_interval": None,
        "close_timeout": _CLOSE_SECONDS,
        "max_queue": _MESSAGES_AHEAD,
    }
    _, far = await asyncio.get_running_loop().create_connection(
        lambda: ClientConnection(protocol, **options), sock=connection
    )
    return far


async def _opened(far: ClientConnection, scope: Scope) -> None:
    client = scope.get("client")
    passed = passing.inward(scope["headers"], None if client is None else str(client[0]), scope["scheme"])
    sent = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in passing.without_handshake(passed)
        if name != b"host"
    ]
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await far.handshake(sent, user_agent_header=None)
    except InvalidStatus:
        raise
    except (OSError, EOFError, InvalidHandshake, TimeoutError) as error:
        raise FluxError(
            Code.UNAVAILABLE,
            "cannot open the WebSocket: what listens at the port answered with something else; look at it",
            {"reason": BAD_REPLY},
        ) from error


def _uri(scope: Scope) -> WebSocketURI:
    name, _, port = (header(scope, b"host") or "").partition(":")
    if port and not (port.isascii() and port.isdigit()):
        raise FluxError(Code.INVALID, "cannot tell which host is meant: its port is no number")
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return WebSocketURI(False, name, int(port or 80), path, query)


def _raw(response: Response) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items()]


async def _refused(response: Response, send: Send) -> None:
    """Tell the caller how the server refused."""
    headers = passing.without_handshake(passing.outward(_raw(response)))
    body = bytes(response.body or b"")
    headers = [(name, value) for name, value in headers if name != b"content-length"]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def _carried(near: WebSocket, far: ClientConnection, idle: Idle) -> None:
    with idle.scope:
        async with create_task_group() as group:
            group.start_soon(_inward, near, far, idle)
            await _outward(near, far, idle)
            group.cancel_scope.cancel()
    if idle.over:
        await near.close(CloseCode.GOING_AWAY, "nothing passed for too long")


async def _inward(near: WebSocket, far: ClientConnection, idle: Idle) -> None:
    """Send on what the caller sends, and how it closes; the other direction hears the server's answer to that."""
    try:
        while (message := await near.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            await far.send(message["text"] if data is None else data)
            idle.touch()
        code = _sayable(message.get("code"), CloseCode.GOING_AWAY)
        await far.close(code, message.get("reason") or "")
    except ConnectionClosed:
        return


async def _outward(near: WebSocket, far: ClientConnection, idle: Idle) -> None:
    """Send on what the server sends, then close as it closed."""
    try:
        while True:
            message = await far.recv()
            if isinstance(message, str):
                await near.send_text(message)
            else:
                await near.send_bytes(message)
            idle.touch()
    except WebSocketDisconnect:
        return
    except ConnectionClosed as error:
        heard = error.rcvd or error.sent
        code = _sayable(None if heard is None else heard.code, CloseCode.INTERNAL_ERROR)
        await _close(near, code, None if heard is None else heard.reason)


async def _close(near: WebSocket, code: int, reason: str | None) -> None:
    if near.client_state is WebSocketState.DISCONNECTED:
        return
    try:
        await near.close(code, reason)
    except (WebSocketDisconnect, RuntimeError):
        return  # the caller was faster


def _sayable(code: int | None, broken: int) -> int:
    if code == CloseCode.NO_STATUS_RCVD:
        return CloseCode.NORMAL_CLOSURE
    return broken if code is None or code in _UNSAYABLE else code
