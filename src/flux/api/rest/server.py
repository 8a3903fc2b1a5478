"""The HTTP server: a TCP listener and the state directory's unix socket, each connection knowing its peer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from flux.api.rest.access import peer_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE_SECONDS = 5
#: E2B's clients keep idle connections for 300 seconds, and a request on one that was just closed would be lost.
_KEEP_ALIVE_SECONDS = 310
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
    """Listens at both sockets and leaves signals to ``HttpService``."""

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


class HttpService:
    """Serves an application at two sockets until it is stopped.

    Stopping means: accept no more, let requests finish, cut them after ``GRACE_SECONDS``; a second time, cut them at
    once. In the main thread SIGTERM and SIGINT do it.

    Args:
        app: the application.
        listeners: where to listen.
        ready: called once both sockets accept.
    """

    def __init__(self, app: ASGIApp, listeners: Listeners, ready: Callable[[], None]) -> None:
        self._server = _Server(_config(app, listeners))
        self._server.unix, self._server.ready = listeners.unix, ready
        self._tcp = listeners.tcp

    def run(self) -> None:
        """Serve until stopped."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Stop, from any thread."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True

    async def _run(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        await self._server.serve([self._tcp])


def _config(app: ASGIApp, listeners: Listeners) -> Config:
    return Config(
        app,
        http=_Protocol,
        ws="websockets-sansio",
        ws_max_size=_MESSAGE_BYTES_MAX,
        ws_per_message_deflate=False,
        # A caller whose reader pauses answers no pings, and has not hung up.
        ws_ping_interval=None,
        ws_ping_timeout=None,
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
