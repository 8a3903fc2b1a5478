"""The client of a daemon, over TCP or its unix socket."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import msgspec

from flux.api import wire
from flux.api.client import Ended, Query
from flux.api.operations import Operation, operation_named
from flux.api.unix import connected
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.requests import Exec

if TYPE_CHECKING:
    from flux.api.remote_run import Address

CHUNK_BYTES = 256 * 1024
UNIX = "unix:"
_CONNECT_SECONDS = 10.0
_JSON = "application/json"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = connected(self._path)


class HttpClient:
    """Implements ``Client`` over a daemon.

    Args:
        url: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:PATH``.
        token: a key, or the admin token; the unix socket needs none.

    Raises:
        FluxError: ``invalid`` for another kind of URL.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if not (url.startswith(UNIX) or (parts.scheme in ("http", "https") and parts.hostname)):
            raise FluxError(
                Code.INVALID, f"cannot reach {printable(url)!r}: write http://HOST:PORT, https://HOST:PORT or unix:PATH"
            )
        self._url = url.rstrip("/")
        self._token = token
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self,
        operation: str,
        *,
        body: msgspec.Struct | None = None,
        query: Query | None = None,
        idempotency_key: str | None = None,
        **path: str,
    ) -> Any:
        """Call an operation that answers with JSON and return the decoded reply."""
        row = operation_named(operation)
        wire.require_one_reply(body)
        raw = wire.encode_body(body)
        headers = {"Content-Type": _JSON, "Content-Length": str(len(raw))} if raw else {}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return self._decoded(row, self._send(row, path, query, headers, raw or None))

    def download(self, operation: str, target: BinaryIO, *, query: Query | None = None, **path: str) -> int:
        """Call an operation that answers with bytes and write them to ``target`` as they come."""
        row = operation_named(operation)
        reply = self._send(row, path, query, {}, None)
        size = 0
        try:
            while data := reply.read(CHUNK_BYTES):
                target.write(data)
                size += len(data)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise self._broken(row, error) from error
        finally:
            self._drop()
        return size

    def upload(self, operation: str, source: BinaryIO, *, query: Query | None = None, **path: str) -> Any:
        """Call an operation that takes bytes, read from ``source`` to its end."""
        row = operation_named(operation)
        headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
        return self._decoded(row, self._send(row, path, query, headers, source))

    def read_file(self, sandbox: str, path: str, target: BinaryIO) -> int:
        """Copy a file out of a sandbox."""
        return self.download("files.read", target, query={"path": path}, sandbox=sandbox)

    def write_file(self, sandbox: str, path: str, source: BinaryIO, mode: int | None = None) -> Any:
        """Copy ``source`` into a file of a sandbox."""
        query = {"path": path, "mode": None if mode is None else f"{mode:04o}"}
        return self.upload("files.write", source, query=query, sandbox=sandbox)

    def run(
        self,
        sandbox: str,
        request: Exec,
        *,
        stdin: int | None,
        stdout: int,
        stderr: int,
        terminal: bool = False,
    ) -> Ended:
        """Run a command over a WebSocket and carry its streams."""
        from flux.api.remote_run import run

        wire.encode_body(request)
        return run(self._address(), sandbox, request, (stdin, stdout, stderr), terminal=terminal)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._drop()

    def _send(
        self,
        row: Operation,
        path: Mapping[str, str],
        query: Query | None,
        headers: dict[str, str],
        body: bytes | BinaryIO | None,
    ) -> http.client.HTTPResponse:
        """Send a request and return its reply's head; an error reply is raised."""
        asked = wire.encode_query(query)
        target = wire.route(row, path) + (f"?{asked}" if asked else "")
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connect()
        try:
            reply = self._exchange(connection, row.method, target, headers, body)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            self._drop()
            raise self._broken(row, error) from error
        except BaseException:
            self._drop()
            raise
        if reply.status >= 400:
            raise self._refused(reply)
        return reply

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes | BinaryIO | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, target, body, headers, encode_chunked="Transfer-Encoding" in headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a body says why and hangs up before it has read all of it.
            reply = connection.getresponse()
            if reply.status < 400:
                raise
            return reply
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connected connection; one per call, so that none is found dead when a call changes something."""
        self._drop()
        self._connection = connection = self._new_connection()
        try:
            connection.connect()
        except OSError as error:
            self._drop()
            reason = (error.strerror or str(error) or type(error).__name__).lower()
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot reach the daemon at {printable(self._url)}: {reason}; nothing was changed; is it running?",
            ) from error
        connection.sock.settimeout(None)
        return connection

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._url.startswith(UNIX):
            return _UnixConnection(self._url[len(UNIX) :])
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS)

    def _address(self) -> Address:
        from flux.api.remote_run import Address

        if self._url.startswith(UNIX):
            return Address(url="ws://localhost", unix_socket=self._url[len(UNIX) :], token=self._token)
        return Address(url="ws" + self._url.removeprefix("http"), unix_socket=None, token=self._token)

    def _decoded(self, row: Operation, reply: http.client.HTTPResponse) -> Any:
        try:
            return msgspec.json.decode(reply.read())
        except msgspec.DecodeError as error:
            raise FluxError(
                Code.INTERNAL, f"cannot read the reply of {printable(self._url)}: it is not JSON; is it a Flux daemon?"
            ) from error
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise self._broken(row, error) from error
        finally:
            self._drop()

    def _refused(self, reply: http.client.HTTPResponse) -> FluxError:
        try:
            error = wire.decode_error(reply.read())
        except (http.client.HTTPException, OSError):
            error = None
        finally:
            self._drop()
        return error or FluxError(
            Code.UNAVAILABLE if reply.status in (502, 503) else Code.INTERNAL,
            f"cannot understand the reply of {printable(self._url)}: status {reply.status}; is it a Flux daemon?",
        )

    def _broken(self, row: Operation, error: Exception) -> FluxError:
        """Return what it means that the connection broke after the request was sent."""
        where = printable(self._url)
        if row.method == "GET":
            return FluxError(Code.UNAVAILABLE, f"cannot read the reply of {where}: the connection broke; try again")
        return FluxError(
            Code.UNKNOWN_OUTCOME,
            f"cannot tell the outcome of {row.name}: the connection to {where} broke ({type(error).__name__}) after "
            "the request was sent; look at the sandbox, its changesets and the audit log before trying again",
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
