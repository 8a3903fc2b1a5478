"""A sandbox with a server in it, spoken to by the names of its ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.api.daemons import Daemon
from tests.api.envd import Envd, said, start

DOMAIN = "sandboxes.test"
PORT = 8000
CLOSED = "The sandbox is running but port is not open"


class Box(Envd):
    """A sandbox whose ports are asked."""

    def host(self, port: int = PORT, domain: str = DOMAIN) -> str:
        """Return the name of a port."""
        return f"{port}-{self.id}.{domain}"

    def ask(self, path: str, method: str = "GET", *, host: str | None = None, **options: Any) -> httpx.Response:
        """Send a request to a port."""
        headers = [("host", host or self.host()), *options.pop("headers", [])]
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **options)

    def serve(self, port: int = PORT, address: str = "127.0.0.1") -> None:
        """Start the server and wait until it listens."""
        script = Path(__file__).with_name("portserver.py").read_bytes()
        headers = {"content-type": "application/octet-stream"}
        assert self.http.post("/files", params={"path": "/home/user/s.py"}, content=script, headers=headers).is_success
        with self.stream("Start", start(f"exec /usr/bin/python3 /home/user/s.py {address} {port}")) as happened:
            output = b""
            while b"up" not in output:
                event = next(happened)
                assert "end" not in event, (output, event)
                output += said(event)

    def socket(self, path: str = "/ws", port: int = PORT, **options: Any) -> ClientConnection:
        """Open a WebSocket to a port."""
        return connect(
            f"ws://{self.host(port)}{path}", sock=raw(self.url), compression=None, proxy=None, max_size=None, **options
        )


def raw(url: str) -> socket.socket:
    """Return a connection to the daemon."""
    place = urlsplit(url)
    assert place.hostname is not None
    return socket.create_connection((place.hostname, place.port or 80), timeout=60)


def spoken(url: str, request: bytes) -> bytes:
    """Send bytes and return all that comes back."""
    with raw(url) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def boxed(daemon: Daemon, key: str, **creation: Any) -> Iterator[Box]:
    """Make a sandbox for a while."""
    box = Box(daemon.url, key, **creation)
    try:
        yield box
    finally:
        box.close()
