"""Runs a command in a daemon's sandbox over its WebSocket (``api.rest.terminal`` has the other end)."""

from __future__ import annotations

import os
import select
import threading
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from flux.api import wire
from flux.api.client import Ended
from flux.api.console import raw, size_of, watching_size
from flux.api.operations import SANDBOX
from flux.api.unix import connected
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.requests import Exec

_CHUNK_BYTES = 64 * 1024
_MESSAGE_BYTES_MAX = 1024 * 1024
_MESSAGES_AHEAD = 4
#: Input that may be on its way to the command. It fits into a socket's buffer: a library that is stuck in sending can
#: receive nothing, and a command that cannot write its output takes no input, so both ends would wait for ever.
_WINDOW_BYTES = 256 * 1024


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon is: a ``ws`` URL, the unix socket to use in its place, and who calls."""

    url: str
    unix_socket: str | None
    token: str | None


def run(
    address: Address, sandbox: str, request: Exec, streams: tuple[int | None, int, int], *, terminal: bool
) -> Ended:
    """Run a command and carry its streams from and to descriptors.

    Args:
        address: the daemon.
        sandbox: the sandbox's id or name.
        request: the command.
        streams: stdin (or ``None``), stdout and stderr.
        terminal: give the command a terminal.

    Raises:
        FluxError: what the daemon said, or ``unknown_outcome`` if the connection broke.
    """
    stdin, stdout, _ = streams
    with _connected(address, sandbox) as connection, ExitStack() as held:
        session = _Session(connection, streams)
        connection.send(_opening(request, size_of(stdout) if terminal else None))
        if terminal:
            held.enter_context(raw(stdin))
            held.enter_context(watching_size(stdout, session.resize))
        return session.run()


def _connected(address: Address, sandbox: str) -> ClientConnection:
    path = wire.fill(SANDBOX + "/pty", {"sandbox": sandbox})
    options: dict[str, Any] = {
        "additional_headers": {} if address.token is None else {"Authorization": f"Bearer {address.token}"},
        "compression": None,
        "max_size": _MESSAGE_BYTES_MAX,
        "max_queue": _MESSAGES_AHEAD,
        # A reader that pauses (a pager on the output) answers no pings, and is no broken connection.
        "ping_interval": None,
        "proxy": None,
    }
    try:
        if address.unix_socket is not None:
            options["sock"] = connected(address.unix_socket)
        connection: ClientConnection = connect(address.url + path, **options)
    except InvalidStatus as error:
        refusal = wire.decode_error(bytes(error.response.body or b""))
        raise refusal or FluxError(
            Code.INTERNAL, f"cannot run the command: the daemon answered with status {error.response.status_code}"
        ) from None
    except (OSError, InvalidHandshake) as error:
        raise FluxError(
            Code.UNAVAILABLE, f"cannot reach the daemon: {printable(str(error))}; nothing was changed"
        ) from error
    return connection


def _opening(request: Exec, size: tuple[int, int] | None) -> str:
    terminal = None if size is None else {"rows": size[0], "columns": size[1]}
    fields = {"exec": msgspec.Raw(wire.encode_body(request)), "terminal": terminal}
    return msgspec.json.encode(fields).decode("utf-8")


class _Session:
    """One command on one WebSocket."""

    def __init__(self, connection: ClientConnection, streams: tuple[int | None, int, int]) -> None:
        self._connection = connection
        self._stdin, stdout, stderr = streams
        self._targets = {1: stdout, 2: stderr}
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC)
        self._taken = threading.Condition()
        self._on_its_way = 0
        self._over = False

    def run(self) -> Ended:
        """Carry the streams until the command has ended."""
        feeder = threading.Thread(target=self._feed, name="flux-stdin", daemon=True)
        feeder.start()
        try:
            return self._receive()
        except ConnectionClosed as error:
            raise FluxError(
                Code.UNKNOWN_OUTCOME,
                "cannot tell how the command ended: the connection to the daemon broke, and with it the command; look "
                "at what it changed before running it again",
            ) from error
        finally:
            with self._taken:
                self._over = True
                self._taken.notify()
            os.write(self._waker, b"!")
            feeder.join()
            os.close(self._wake)
            os.close(self._waker)

    def resize(self, rows: int, columns: int) -> None:
        """Tell the command's terminal its new size."""
        self._tell({"event": "resize", "rows": rows, "columns": columns})

    def _tell(self, fields: dict[str, Any]) -> None:
        with suppress(ConnectionClosed):
            self._connection.send(msgspec.json.encode(fields).decode("utf-8"))

    def _receive(self) -> Ended:
        while True:
            message = self._connection.recv()
            if isinstance(message, bytes):
                view = memoryview(message)[1:]
                while view:
                    view = view[os.write(self._targets[message[0]], view) :]
                continue
            fields = msgspec.json.decode(message)
            event = fields.pop("event")
            if event == "taken":
                with self._taken:
                    self._on_its_way -= fields["bytes"]
                    self._taken.notify()
            if event == "exit":
                return msgspec.convert(fields, Ended)
            if event == "error":
                raise wire.decode_error(msgspec.json.encode(fields["error"])) or _unreadable()

    def _feed(self) -> None:
        """Send the caller's input as it comes, then its end."""
        source = self._stdin
        with suppress(ConnectionClosed):
            while source is not None:
                poll = select.poll()
                poll.register(self._wake, select.POLLIN)
                poll.register(source, select.POLLIN)
                if any(descriptor == self._wake for descriptor, _ in poll.poll()):
                    return
                data = os.read(source, _CHUNK_BYTES)
                if not data:
                    break
                if not self._may_send(len(data)):
                    return
                self._connection.send(data)
            self._tell({"event": "eof"})

    def _may_send(self, size: int) -> bool:
        """Wait until the command has taken enough of the input; ``False`` if it ended meanwhile."""
        with self._taken:
            self._taken.wait_for(lambda: self._over or self._on_its_way + size <= _WINDOW_BYTES)
            self._on_its_way += size
            return not self._over


def _unreadable() -> FluxError:
    return FluxError(Code.INTERNAL, "cannot read what the daemon said about the command")
