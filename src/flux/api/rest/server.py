"""The HTTP server: a TCP listener and the state directory's unix socket, each connection knowing its peer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from flux.api.rest.access import peer_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE_SECONDS = 5
_KEEP_ALIVE_SECONDS = 30
_MESSAGE_BYTES_MAX = 1024 * 1024
_BACKLOG = 512
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Listeners(msgspec.Struct, frozen=True):
    """Bound sockets that do not listen yet, and the certificate and key files of the TCP one if it speaks TLS."""

    tcp: socket.socket
    unix: socket.socket
    certificate: str | None = None
    key: str | None = None


class _Protocol(H11Protocol):
    """HTTP/1.1 that tells the application who is at the other end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel before the first byte is read."""
        super().connection_made(transport)
        self.app_state = {"peer": peer_of(transport.get_extra_info("socket"))}


class _Server(Server):
    """Listens at both sockets and leaves signals to ``serve``."""

    unix: socket.socket
    ready: Callable[[], None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing: who runs the server handles signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the TCP socket, with TLS if so configured, then at the unix socket without."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        listener = await loop.create_unix_server(self._connection, sock=self.unix, backlog=_BACKLOG)
        self.servers.append(listener)
        self.ready()

    def _connection(self) -> asyncio.Protocol:
        return _Protocol(config=self.config, server_state=self.server_state, app_state={})


def serve(app: ASGIApp, listeners: Listeners, ready: Callable[[], None], beside: Callable[[], Awaitable[None]]) -> None:
    """Serve until SIGTERM or SIGINT: then accept no more, let requests finish, cut them after ``GRACE_SECONDS``.

    A second signal cuts them at once.

    Args:
        app: the application.
        listeners: where to listen.
        ready: called once both sockets accept.
        beside: runs as long as the server does.
    """
    server = _Server(_config(app, listeners))
    server.unix, server.ready = listeners.unix, ready
    asyncio.run(_serve(server, listeners, beside))


def _config(app: ASGIApp, listeners: Listeners) -> Config:
    return Config(
        app,
        http=_Protocol,
        ws="websockets-sansio",
        ws_max_size=_MESSAGE_BYTES_MAX,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=listeners.certificate,
        ssl_keyfile=listeners.key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )


async def _serve(server: _Server, listeners: Listeners, beside: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _stop, server)
    task = asyncio.ensure_future(beside())
    try:
        await server.serve([listeners.tcp])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _stop(server: _Server) -> None:
    server.force_exit = server.should_exit
    server.should_exit = True
