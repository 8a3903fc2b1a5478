"""Who answers a command: an engine in this process, the daemon of the state directory, or a daemon elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flux.app import config, lock, token
from flux.cli.invocation import DaemonStatus, Options
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

if TYPE_CHECKING:
    from flux.api.client import Client
    from flux.core.access import Actor

SOCKET_NAME = "socket"
_POLL_SECONDS = 0.05
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def open_session(options: Options, command: str, tell: Callable[[str], None]) -> RemoteSession | LocalSession:
    """Return the session that the global options ask for; nothing is opened before it is used.

    Args:
        options: the global options.
        command: this run's command, for other processes that have to wait for it.
        tell: says something to a person.
    """
    if options.server is not None:
        return RemoteSession(options, options.server)
    return LocalSession(options, command, tell)


class RemoteSession:
    """A daemon reached by its URL."""

    embedded = False

    def __init__(self, options: Options, url: str) -> None:
        self._options = options
        self._url = url
        self._client: Client | None = None

    def client(self) -> Client:
        """Return the client."""
        if self._client is None:
            from flux.api.http import HttpClient

            self._client = HttpClient(self._url, self._options.token or self._local_token())
        return self._client

    def _local_token(self) -> str | None:
        """Return the token of the local state directory; it is never sent to another machine."""
        from urllib.parse import urlsplit

        if not self._url.startswith("unix:") and urlsplit(self._url).hostname not in _LOOPBACK:
            return None
        place = config.load(file=self._options.config).state_dir
        return token.read_admin_token(place)

    def release(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def start_daemon(self, listen: str | None, role: str) -> DaemonStatus:
        """Refuse: a daemon is started where its state directory is."""
        raise _elsewhere("start")

    def stop_daemon(self) -> DaemonStatus:
        """Refuse, as ``start_daemon``."""
        raise _elsewhere("stop")

    def daemon_status(self) -> DaemonStatus:
        """Refuse, as ``start_daemon``."""
        raise _elsewhere("look at")


def _elsewhere(verb: str) -> FluxError:
    return FluxError(
        Code.INVALID, f"cannot {verb} a daemon by its URL: name its state directory with --state-dir, without --server"
    )


class LocalSession:
    """A state directory of this machine: its daemon if it has one, else an engine in this process."""

    def __init__(self, options: Options, command: str, tell: Callable[[str], None]) -> None:
        self._options = options
        self._command = command
        self._tell = tell
        self._client: Client | None = None
        self._config: config.Config | None = None
        self._embedded = False

    @property
    def embedded(self) -> bool:
        """Whether the engine is in this process; opens the client to know."""
        self.client()
        return self._embedded

    @property
    def config(self) -> config.Config:
        """The configuration, read at its first use."""
        if self._config is None:
            self._config = config.load(state_directory=self._options.state_directory, file=self._options.config)
        return self._config

    def client(self) -> Client:
        """Return the client, waiting a little for another command that works on the state directory."""
        if self._client is None:
            self._client = self._open()
        return self._client

    def _open(self) -> Client:
        place = self.config.state_dir
        lock.prepare_state_directory(place)
        deadline = time.monotonic() + self.config.lock_wait_seconds
        while True:
            held = lock.acquire(
                place,
                "embedded",
                self._command,
                wait_seconds=max(0.0, deadline - time.monotonic()),
                waiting=self._tell_waiting,
            )
            if isinstance(held, lock.StateLock):
                return self._embed(held)
            # A daemon that starts or stops holds the lock without answering for a moment.
            client = self._connect(held, final=time.monotonic() >= deadline)
            if client is not None:
                self._embedded = False
                return client
            time.sleep(_POLL_SECONDS)

    def _tell_waiting(self, holder: lock.Holder | None) -> None:
        self._tell("waiting for " + ("another command" if holder is None else printable(holder.command)) + " to end")

    def _embed(self, held: lock.StateLock) -> Client:
        try:
            from flux.api.embedded import EmbeddedClient
            from flux.app.compose import compose

            runtime = compose(self.config, persistent=False)
        except BaseException:
            held.release()
            raise

        def release() -> None:
            try:
                runtime.close()
            finally:
                held.release()

        try:
            runtime.recover()
            self._embedded = True
            return EmbeddedClient(runtime.platform, local_actor(), release)
        except BaseException:
            release()
            raise

    def _connect(self, holder: lock.Holder, *, final: bool) -> Client | None:
        from flux.api.http import HttpClient

        place = self.config.state_dir
        secret = self._options.token or token.read_admin_token(place)
        client = HttpClient("unix:" + os.path.join(place, SOCKET_NAME), secret)
        try:
            client.call("health")
        except FluxError as error:
            client.close()
            if error.code is not Code.UNAVAILABLE:
                raise
            if final:
                raise FluxError(
                    Code.UNAVAILABLE,
                    f"cannot use the state directory {printable(place)}: its daemon (process {holder.pid}) does not "
                    "answer; look at its log, or stop it with: fluxctl daemon stop",
                    {"pid": holder.pid},
                ) from error
            return None
        return client

    def release(self) -> None:
        """Close the engine or the connection, and let others use the state directory."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def start_daemon(self, listen: str | None, role: str) -> DaemonStatus:
        """Start a daemon in the background."""
        from flux.app import background

        return background.start(self.config, self._options, listen, role)

    def stop_daemon(self) -> DaemonStatus:
        """Stop the daemon."""
        from flux.app import background

        return background.stop(self.config)

    def daemon_status(self) -> DaemonStatus:
        """Tell whether a daemon holds the state directory."""
        from flux.app import background

        return background.status(self.config)


def local_actor() -> Actor:
    """Return who works on a state directory of their own: the administrator, under the user's name."""
    from flux.api.rest.access import user_name
    from flux.core.access import Actor, Role

    return Actor(name=user_name(os.geteuid()), role=Role.ADMIN)
