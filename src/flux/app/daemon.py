"""The daemon: one engine on one state directory, served until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anyio
import msgspec
import structlog
from anyio import to_thread
from starlette.types import ASGIApp

from flux.api.rest.application import build
from flux.api.rest.server import HttpService, Listeners
from flux.app import config, lock, logs, token
from flux.app.addresses import Address, bind_tcp, bind_unix, url_of
from flux.app.compose import compose, engine_settings
from flux.app.metrics import Metrics
from flux.core.errors import Code, FluxError
from flux.core.paths import is_utf8, printable
from flux.engine.engine import Engine

SOCKET_NAME = "socket"
DAEMON_NAME = "daemon.json"
_SWEEP_SECONDS = 30.0
_THREADS_SECONDS = 2.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What ``fluxd`` was told on its command line."""

    state_directory: str | None = None
    listen: str | None = None
    config_file: str | None = None
    insecure: bool = False
    certificate: str | None = None
    key: str | None = None


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        FluxError: if it cannot start: ``unavailable`` when another process has the state directory or the port is
            taken, ``denied`` for an address that needs TLS, ``invalid`` for a configuration that cannot be used.
    """
    settings = config.load(state_directory=options.state_directory, file=options.config_file)
    address = Address.parse(options.listen or settings.listen)
    encrypted = _encrypted(options)
    address.require_local(insecure=options.insecure, encrypted=encrypted)
    logs.configure()
    with ExitStack() as held:
        state_lock = held.enter_context(_locked(settings.state_dir, settings.lock_wait_seconds))
        listeners = _listeners(held, settings.state_dir, address, options)
        url = url_of(listeners.tcp, address.host, encrypted=encrypted)
        metrics = Metrics()
        secret = token.ensure_admin_token(settings.state_dir)
        engine = compose(settings, persistent=True, admin_token=secret, observer=metrics)
        held.callback(engine.close)
        _log_recovery(engine)

        def ready() -> None:
            held.enter_context(_announced(settings.state_dir, url))
            state_lock.announce(url)
            structlog.get_logger().info("ready", url=url, state_dir=printable(settings.state_dir), pid=os.getpid())
            print(f"fluxd is ready on {url}", flush=True)

        app = _application(engine, metrics, settings, any_host=options.insecure)
        HttpService(app, listeners, ready, _Sweeper(engine).run).run()
        structlog.get_logger().info("stopping")
    structlog.get_logger().info("stopped")
    _end_process()


def _application(engine: Engine, metrics: Metrics, settings: config.Config, *, any_host: bool) -> ASGIApp:
    """Return the application, whose metrics count what runs at the moment they are read."""
    output_bytes = engine_settings(settings, persistent=True, admin_token=None).exec_output_bytes

    def render() -> bytes:
        metrics.gauge("live_sandboxes", engine.health().running)
        return metrics.render()

    return build(engine, logs.RequestLog(), render, exec_output_bytes=output_bytes, any_host=any_host)


def _encrypted(options: Options) -> bool:
    if (options.certificate is None) != (options.key is None):
        raise FluxError(Code.INVALID, "cannot speak TLS with half of it: give both --tls-cert and --tls-key")
    return options.certificate is not None


@contextmanager
def _locked(state_directory: str, wait_seconds: float) -> Iterator[lock.StateLock]:
    """Hold the state directory, waiting a little for an embedded command that works on it."""
    lock.prepare_state_directory(state_directory)

    def waiting(holder: lock.Holder | None) -> None:
        structlog.get_logger().info("waiting", holder=None if holder is None else msgspec.to_builtins(holder))

    held = lock.acquire(state_directory, "daemon", "fluxd", wait_seconds=wait_seconds, waiting=waiting)
    if isinstance(held, lock.Holder):
        shown = printable(state_directory)
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot use the state directory {shown}: the daemon {printable(held.command)!r} (process {held.pid}) "
            f"has it; stop that one first: fluxctl --state-dir {shown} daemon stop",
            {"pid": held.pid, "command": held.command, "url": held.url},
        )
    try:
        yield held
    finally:
        held.release()


def _listeners(held: ExitStack, state_directory: str, address: Address, options: Options) -> Listeners:
    """Bind both sockets; nobody can connect before the server listens at them."""
    tcp = bind_tcp(address)
    held.callback(tcp.close)
    path = os.path.join(state_directory, SOCKET_NAME)
    unix = bind_unix(path)
    held.callback(unix.close)
    held.callback(_remove, path)
    return Listeners(tcp, unix, options.certificate, options.key)


@contextmanager
def _announced(state_directory: str, url: str) -> Iterator[None]:
    """Keep ``daemon.json`` (0600) as long as the daemon serves: where it is, for programs that start it."""
    path = os.path.join(state_directory, DAEMON_NAME)
    partial = f"{path}.new"
    place = os.path.join(state_directory, SOCKET_NAME)
    body = {"pid": os.getpid(), "url": url, "socket": place if is_utf8(place) else None}
    _remove(partial)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(body))
    finally:
        os.close(descriptor)
    os.rename(partial, path)
    try:
        yield
    finally:
        _remove(path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _log_recovery(engine: Engine) -> None:
    recovered = msgspec.to_builtins(engine.recover())
    found = {name: values for name, values in recovered.items() if values}
    if found:
        structlog.get_logger().warning("recovered", **found)


class _Sweeper:
    """Expires and deletes what is due, also when nobody asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Sweep now and then until cancelled."""
        while True:
            await anyio.sleep(_SWEEP_SECONDS)
            try:
                await to_thread.run_sync(self._engine.sweep, abandon_on_cancel=True)
            except FluxError as error:
                structlog.get_logger().error("sweep", outcome=error.code.value, message=error.message)


def _end_process() -> None:
    """End also if a call still waits for something outside of Flux; everything of Flux is closed by now."""
    deadline = time.monotonic() + _THREADS_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() and not thread.daemon for thread in threading.enumerate()[1:]):
        structlog.get_logger().warning("cut", reason="calls did not end in time")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
