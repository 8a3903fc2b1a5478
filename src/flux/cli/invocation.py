"""One run of ``fluxctl``: its global options, its client and how it prints.

Commands reach everything through the ``Invocation`` in click's context. What opens a client, and what controls a
daemon, is given from outside (``app.fluxctl``), so that nothing here knows how an engine is made.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from rich.console import Console

    from flux.api.client import Client
    from flux.ports.clock import Clock


class Options(msgspec.Struct, kw_only=True):
    """The global options. ``typed`` are the words of them that were typed, for hints; without the token, a secret."""

    state_directory: str | None = None
    server: str | None = None
    token: str | None = None
    config: str | None = None
    typed: list[str] = []


class DaemonStatus(msgspec.Struct, kw_only=True):
    """A daemon of a state directory, or that there is none. ``url`` is where it listens."""

    running: bool
    state_directory: str
    pid: int | None = None
    url: str | None = None
    log: str | None = None


class Session(Protocol):
    """What a run works with. Every method raises ``FluxError``."""

    @property
    def embedded(self) -> bool:
        """Whether the client's engine is in this process, so that no other can use the state directory meanwhile."""
        ...

    def client(self) -> Client:
        """Return the client, opening it first if needed."""
        ...

    def release(self) -> None:
        """Close the client, if one is open, and let other processes use the state directory. Idempotent."""
        ...

    def start_daemon(self, listen: str | None, role: str) -> DaemonStatus:
        """Start a daemon in the background and return when it answers."""
        ...

    def stop_daemon(self) -> DaemonStatus:
        """Stop the daemon and return when it has ended."""
        ...

    def daemon_status(self) -> DaemonStatus:
        """Tell whether a daemon holds the state directory."""
        ...


Opener = Callable[[Options, str, Callable[[str], None]], Session]


class Invocation:
    """One run of the program.

    Args:
        opener: makes the session from the options, the command's name and a function that tells the user something.
        clock: the time, for what is shown relative to it.
    """

    def __init__(self, opener: Opener, clock: Clock) -> None:
        self.options = Options()
        self.json_asked = False
        self._opener = opener
        self._clock = clock
        self._session: Session | None = None
        self._command = "fluxctl"

    @property
    def json(self) -> bool:
        """Whether replies are printed as JSON: asked for, or nobody is looking."""
        return self.json_asked or not sys.stdout.isatty()

    def begin(self, command: str) -> None:
        """Remember the name of the command that runs, for other processes that have to wait for it."""
        self._command = command

    @property
    def session(self) -> Session:
        """The session, opened at its first use."""
        if self._session is None:
            self._session = self._opener(self.options, self._command, self.tell)
        return self._session

    def call(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the client and return its decoded reply."""
        return self.session.client().call(operation, **arguments)

    def close(self) -> None:
        """Release the session, if one was opened."""
        if self._session is not None:
            self._session.release()

    def tell(self, message: str) -> None:
        """Say something that is not a reply, to a person only."""
        if sys.stderr.isatty():
            sys.stderr.write(f"fluxctl: {message}\n")
            sys.stderr.flush()

    def emit(self, reply: Any, show: Callable[[Console, Any], None]) -> None:
        """Print a reply: as JSON, or the way ``show`` does it for a person."""
        if self.json:
            write_json(reply)
        else:
            show(console(), reply)

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._clock.wall()

    def hint(self, *words: str) -> str:
        """Return the command line that runs ``fluxctl`` with ``words`` the same way as this run."""
        return shlex.join(["fluxctl", *self.options.typed, *words])


def console() -> Console:
    """Return the terminal to print on. Nothing in a text is taken for markup, since texts hold the names of files."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def encode_json(reply: Any, *, indent: int = 0) -> bytes:
    """Return JSON; text that is no valid Unicode is escaped rather than refused."""
    try:
        data = msgspec.json.encode(reply, enc_hook=str)
        return msgspec.json.format(data, indent=indent) if indent else data
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(reply), indent=indent or None).encode("ascii")


def write_json(reply: Any) -> None:
    """Print a reply as one JSON value: one line, or indented on a terminal."""
    write_bytes(encode_json(reply, indent=2 if sys.stdout.isatty() else 0) + b"\n")


def write_bytes(data: bytes) -> None:
    """Write to stdout at once.

    Raises:
        FluxError: ``unknown_outcome`` if that fails: what the reply tells of has happened all the same.
    """
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        reason = (error.strerror or str(error)).lower()
        raise FluxError(
            Code.UNKNOWN_OUTCOME,
            f"cannot print the reply: {reason}; the command was carried out, look before repeating it",
        ) from error


def drop_output() -> None:
    """Let the interpreter's own last flush of stdout go nowhere; its reader or its disk has failed already."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
