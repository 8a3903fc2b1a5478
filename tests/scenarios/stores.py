"""An S3 service on loopback, behind a gate that a test opens and closes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

import httpx

from tests.cases.kit import ENVIRONMENT

NAME = "flux-tests"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_CHUNK = 1 << 16


class Mood(Enum):
    """How the gate treats a connection."""

    OPEN = "open"
    DOWN = "down"
    REFUSING = "refusing"
    SILENT = "silent"


class Bucket:
    """A bucket at the service on ``port``, reached through a gate of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._mood = Mood.OPEN
        self._turned = dict.fromkeys(Mood, 0)
        self._held: list[socket.socket] = []
        self._gate = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def configuration(self) -> str:
        """The section of ``flux.toml`` that makes a daemon use it."""
        endpoint = f"http://127.0.0.1:{self._gate.getsockname()[1]}"
        return f'[objects]\nurl = "s3://{NAME}/x?endpoint={endpoint}"\n'

    @property
    def environment(self) -> dict[str, str]:
        """The variables that hold its keys."""
        return KEYS

    def mood(self, mood: Mood) -> None:
        """Treat connections so from now on; those that are there end."""
        self._mood = mood
        self._turned = dict.fromkeys(Mood, 0)
        held, self._held = self._held, []
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def turned_away(self, mood: Mood) -> int:
        """Return how many connections were treated so since the mood was set."""
        return self._turned[mood]

    def close(self) -> None:
        """Take no more connections."""
        self._gate.close()
        self.mood(Mood.DOWN)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._gate.accept()
            except OSError:
                return
            self._turned[self._mood] += 1
            threading.Thread(target=self._treat, args=(connection, self._mood), daemon=True).start()

    def _treat(self, connection: socket.socket, mood: Mood) -> None:
        if mood is Mood.DOWN:
            connection.close()
            return
        self._held.append(connection)
        if mood is Mood.SILENT:
            return
        with suppress(OSError):
            if mood is Mood.REFUSING:
                connection.recv(_CHUNK)
                connection.sendall(_FORBIDDEN)
                connection.close()
                return
            service = socket.create_connection(("127.0.0.1", self._port))
            self._held.append(service)
            threading.Thread(target=_copy, args=(connection, service), daemon=True).start()
            _copy(service, connection)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(_CHUNK):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def buckets() -> Iterator[Bucket]:
    """Run the service and give a new bucket in it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**ENVIRONMENT, **KEYS}
    )
    try:
        _await(process, f"http://127.0.0.1:{port}/{NAME}")
        bucket = Bucket(port)
        yield bucket
        bucket.close()
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        assert process.poll() is None, "moto has ended: pip install 'moto[server]'"
        with suppress(httpx.HTTPError):
            if httpx.put(url).status_code == 200:
                return
        threading.Event().wait(0.1)
    raise AssertionError("moto does not answer")
