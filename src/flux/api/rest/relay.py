"""Relays the WebSocket of a command whose sandbox runs on another node, message by message, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import CancelScope, create_task_group
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from flux.api import wire
from flux.api.rest.forward import Forwarder, url_of
from flux.api.rest.routed import headers_of
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.core.access import Actor
    from flux.core.control import Located

_MESSAGE_BYTES_MAX = 1024 * 1024
_MESSAGES_AHEAD = 4
_ABNORMAL = 1011
_CONNECT_SECONDS = 10


async def relay(
    forwarder: Forwarder, located: Located, actor: Actor, scope: Scope, receive: Receive, send: Send
) -> None:
    """Carry one command between its caller and its node.

    Raises:
        FluxError: what the node refused with, before the caller's WebSocket was opened; ``unavailable``.
    """
    far = await _connected(forwarder, located, actor, scope)
    near = WebSocket(scope, receive, send)
    try:
        await near.accept()
        async with create_task_group() as group:
            group.start_soon(_inward, near, far, group.cancel_scope)
            await _outward(near, far)
            group.cancel_scope.cancel()
    finally:
        with CancelScope(shield=True):
            await far.close()


async def _connected(forwarder: Forwarder, located: Located, actor: Actor, scope: Scope) -> ClientConnection:
    options: dict[str, Any] = {
        "additional_headers": headers_of(located, actor),
        "compression": None,
        "max_size": _MESSAGE_BYTES_MAX,
        "max_queue": _MESSAGES_AHEAD,
        "open_timeout": _CONNECT_SECONDS,
        "ping_interval": None,
        "proxy": None,
        "ssl": forwarder.context(located),
    }
    try:
        return await connect("ws" + url_of(located, scope).removeprefix("http"), **options)
    except InvalidStatus as error:
        refusal = wire.decode_error(bytes(error.response.body or b""))
        raise refusal or FluxError(
            Code.INTERNAL,
            f"cannot run the command: the node {located.node} answered with status {error.response.status_code}",
        ) from None
    except (OSError, InvalidHandshake) as error:
        raise FluxError(
            Code.UNAVAILABLE, f"cannot reach the node {located.node}: nothing was changed; try again"
        ) from error


async def _inward(near: WebSocket, far: ClientConnection, scope: CancelScope) -> None:
    """Send on what the caller sends, until it hangs up."""
    try:
        while (message := await near.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            await far.send(message["text"] if data is None else data)
    except ConnectionClosed:
        return  # the other direction tells the caller
    scope.cancel()


async def _outward(near: WebSocket, far: ClientConnection) -> None:
    """Send on what the node sends, then close as it closed."""
    try:
        while True:
            message = await far.recv()
            if isinstance(message, str):
                await near.send_text(message)
            else:
                await near.send_bytes(message)
    except ConnectionClosed as error:
        closed = error.rcvd
        await near.close(_ABNORMAL if closed is None else closed.code, None if closed is None else closed.reason)
