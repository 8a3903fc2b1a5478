"""The daemon: one state directory's node, control plane or both, served until it is told to stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from starlette.types import ASGIApp

from flux.api.rates import RequestRates, request_rates
from flux.api.rest.application import build, build_node
from flux.api.rest.gate import Gate, NodeGate, UserGate
from flux.api.rest.server import HttpService, Listeners
from flux.app import config, lock, logs, token
from flux.app.addresses import Address, bind_tcp, bind_unix, url_of
from flux.app.compose import compose, engine_settings
from flux.app.metrics import Metrics
from flux.app.roles import Role, Runtime
from flux.app.work import Workers
from flux.control.routed import RoutedPlane
from flux.core.errors import Code, FluxError
from flux.core.paths import is_utf8, printable
from flux.core.rates import Rate

if TYPE_CHECKING:
    from flux.api.rest.forward import Forwarder

SOCKET_NAME = "socket"
DAEMON_NAME = "daemon.json"
#: How long the control plane's calls may still go on when the daemon stops.
_CALLS_SECONDS = 5.0
#: Of how many heaps the C library's allocator may make use, and what it calls that setting.
_HEAPS, _HEAPS_SETTING = 2, -8
_THREADS_SECONDS = 2.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What ``fluxd`` was told on its command line."""

    state_directory: str | None = None
    listen: str | None = None
    node_listen: str | None = None
    config_file: str | None = None
    role: Role = "all"
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
    manager = Address.parse(options.node_listen or settings.node.listen)
    if options.role == "node":
        manager.require_local(insecure=options.insecure, encrypted=encrypted)
    logs.configure()
    _keep_heaps_few()
    with ExitStack() as held:
        state_lock = held.enter_context(_locked(settings.state_dir, settings.lock_wait_seconds))
        listeners = _listeners(held, settings.state_dir, address, options)
        url = url_of(listeners.tcp, address.host, encrypted=encrypted)
        metrics = Metrics()
        runtime = _opened(held, settings, options.role, metrics, url)
        told = _manager(held, runtime, manager, settings, options)
        workers = Workers(runtime.tasks(settings.control.inventory_seconds))
        held.callback(workers.stop)

        def ready() -> None:
            workers.start()
            held.enter_context(_announced(settings.state_dir, url, told))
            state_lock.announce(url)
            structlog.get_logger().info(
                "ready", url=url, role=options.role, state_dir=printable(settings.state_dir), pid=os.getpid(), **told
            )
            print(f"fluxd is ready on {url}", flush=True)

        HttpService(_application(runtime, metrics, settings, options), listeners, ready).run()
        structlog.get_logger().info("stopping")
    structlog.get_logger().info("stopped")
    _end_process()


def _keep_heaps_few() -> None:
    """Let threads share heaps: one for each of hundreds would keep what its thread needed once for ever."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has another allocator
        ctypes.CDLL(None).mallopt(_HEAPS_SETTING, _HEAPS)


def _opened(held: ExitStack, settings: config.Config, role: Role, metrics: Metrics, url: str) -> Runtime:
    """Open the state directory and put right what a crash left behind."""
    runtime = compose(
        settings,
        role=role,
        persistent=True,
        admin_token=token.ensure_admin_token(settings.state_dir),
        observer=metrics,
        data_address=(settings.node.advertise or url) if role == "node" else "",
    )
    held.callback(runtime.close)
    _log_recovery(runtime)
    return runtime


def _manager(
    held: ExitStack, runtime: Runtime, address: Address, settings: config.Config, options: Options
) -> dict[str, str]:
    """Serve a node's manager to its control plane; return what is told of it."""
    if options.role != "node" or runtime.node is None:
        return {}
    from flux.api.node.server import NodeServer

    server = NodeServer(
        runtime.node.manager,
        address.text,
        token.ensure_node_token(settings.state_dir),
        certificate=_pem(options),
        fault=lambda name, error: structlog.get_logger().error("node call", call=name, exc_info=error),
    )
    held.callback(server.stop, _CALLS_SECONDS)
    server.start()
    return {"node": f"{address.host}:{server.port}"}


def _pem(options: Options) -> tuple[bytes, bytes] | None:
    if options.certificate is None or options.key is None:
        return None
    try:
        return Path(options.certificate).read_bytes(), Path(options.key).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FluxError(Code.INVALID, f"cannot speak TLS: {printable(str(error.filename))}: {reason}") from error


def _application(runtime: Runtime, metrics: Metrics, settings: config.Config, options: Options) -> ASGIApp:
    """Return the application, whose metrics count what runs at the moment they are read."""
    output_bytes = engine_settings(settings, persistent=True, admin_token=None).exec_output_bytes

    def render() -> bytes:
        metrics.gauge("live_sandboxes", runtime.engine.health().running)
        return metrics.render()

    if runtime.control is None and runtime.node is not None:
        gate: Gate = NodeGate(RoutedPlane(runtime.engine, runtime.node))
        return build_node(
            gate, logs.RequestLog(metrics), render, exec_output_bytes=output_bytes, any_host=options.insecure
        )
    gate = UserGate(runtime.platform, _forwarder(runtime), _rates(settings.api))
    return build(
        gate,
        logs.RequestLog(metrics),
        render,
        exec_output_bytes=output_bytes,
        any_host=options.insecure,
        domain=settings.e2b.domain,
    )


def _rates(bounds: config.ApiSection) -> RequestRates:
    """Return how often each caller may ask; 0 is no bound."""

    def rate(per_second: float, burst: int) -> Rate | None:
        return Rate(per_second=per_second, burst=burst) if per_second else None

    return request_rates(
        key=rate(bounds.requests_per_second, bounds.burst),
        sandbox=rate(bounds.sandbox_requests_per_second, bounds.sandbox_burst),
    )


def _forwarder(runtime: Runtime) -> Forwarder | None:
    if runtime.control is None:
        return None
    from flux.api.rest.forward import Forwarder

    return Forwarder(runtime.control.contacts.authority)


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
def _announced(state_directory: str, url: str, told: dict[str, str]) -> Iterator[None]:
    """Keep ``daemon.json`` (0600) as long as the daemon serves: where it is, for programs that start it."""
    path = os.path.join(state_directory, DAEMON_NAME)
    partial = f"{path}.new"
    place = os.path.join(state_directory, SOCKET_NAME)
    body = {"pid": os.getpid(), "url": url, "socket": place if is_utf8(place) else None, **told}
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


def _log_recovery(runtime: Runtime) -> None:
    recovered = runtime.recover()
    found = {
        part: {name: values for name, values in told.items() if values}
        for part, told in recovered.items()
        if any(told.values())
    }
    if found:
        structlog.get_logger().warning("recovered", **found)


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
