"""The ASGI application: one route per path of the table of operations, and what belongs to no operation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute

from flux.api import wire
from flux.api.e2b import routes as e2b
from flux.api.e2b.addressing import is_by_host
from flux.api.e2b.dataplane import FrontDoor
from flux.api.e2b.forward import NodeDoor
from flux.api.e2b.tunnel import ROUTE as PORT_ROUTE
from flux.api.e2b.tunnel import NodePort
from flux.api.operations import OPERATIONS, Operation
from flux.api.rest import page
from flux.api.rest.access import Peer, actor_of, host_of, is_loopback
from flux.api.rest.endpoint import Endpoint
from flux.api.rest.exec import ExecEndpoint
from flux.api.rest.guard import Guard, RequestObserver
from flux.api.rest.openapi import document
from flux.api.rest.terminal import ROUTE as TERMINAL_ROUTE
from flux.api.rest.terminal import TerminalEndpoint
from flux.api.rest.threads import Threads
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from flux.api.rest.gate import Gate

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build(
    gate: Gate,
    observer: RequestObserver,
    metrics: Callable[[], bytes],
    *,
    exec_output_bytes: int,
    any_host: bool = False,
    domain: str | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        gate: who may call, and what answers.
        observer: hears of every request.
        metrics: renders the Prometheus page.
        exec_output_bytes: how much of each output the reply of an exec holds.
        any_host: answer for any Host header, as behind a proxy.
        domain: the domain whose names a proxy on this machine sends on, and which sandboxes are told to have.
    """
    threads = Threads()
    found = routes(gate, metrics, threads, exec_output_bytes=exec_output_bytes)
    found += [_Whole(path.replace("...}", ":rest}"), one) for path, one in e2b.resources(gate, threads, domain)]
    inner = FrontDoor(gate, threads, Router(found, redirect_slashes=False, default=_nowhere), domain=domain)
    return Guard(inner, observer, any_host=any_host, domain=domain, let_by_host=is_by_host)


def build_node(
    gate: Gate,
    observer: RequestObserver,
    metrics: Callable[[], bytes],
    *,
    exec_output_bytes: int,
    any_host: bool = False,
) -> ASGIApp:
    """Return the application of a node: what is done where a sandbox runs, and nothing else (spec: generations, §6)."""
    threads = Threads()
    rows = [row for row in OPERATIONS.values() if row.data or row.open]
    found: list[BaseRoute] = [
        _route(path, methods) for path, methods in _by_path(gate, threads, exec_output_bytes, rows).items()
    ]
    found += [_Whole("/metrics", Resource({"GET": _Metrics(None, threads, metrics)}))]
    found += [WebSocketRoute(TERMINAL_ROUTE, TerminalEndpoint(gate, threads))]
    found += [WebSocketRoute(PORT_ROUTE, NodePort(gate, threads))]
    inner = NodeDoor(gate, threads, Router(found, redirect_slashes=False, default=_not_here))
    return Guard(inner, observer, any_host=any_host)


def routes(
    gate: Gate, metrics: Callable[[], bytes], threads: Threads | None = None, *, exec_output_bytes: int
) -> list[BaseRoute]:
    """Return all routes of Flux's own API; those of HTTP lead to a ``Resource`` each."""
    threads, rows = threads or Threads(), list(OPERATIONS.values())
    resources = [_route(path, methods) for path, methods in _by_path(gate, threads, exec_output_bytes, rows).items()]
    return [
        *resources,
        _Whole("/openapi.json", Resource({"GET": _openapi})),
        _Whole("/metrics", Resource({"GET": _Metrics(gate, threads, metrics)})),
        _Whole("/", Resource({"GET": _front})),
        *(_Whole(path, Resource({"GET": page.serve})) for path in page.ROUTES),
        WebSocketRoute(TERMINAL_ROUTE, TerminalEndpoint(gate, threads)),
    ]


def _by_path(
    gate: Gate, threads: Threads, exec_output_bytes: int, rows: Iterable[Operation]
) -> dict[str, dict[str, Endpoint]]:
    paths: dict[str, dict[str, Endpoint]] = {}
    for row in rows:
        run = row.name == "sandbox.exec"
        endpoint = ExecEndpoint(gate, threads, exec_output_bytes) if run else Endpoint(gate, threads, row)
        paths.setdefault(row.path, {})[row.method] = endpoint
    return paths


def _route(path: str, methods: Mapping[str, Endpoint]) -> Route:
    return _Whole(path.replace("...}", ":rest}"), Resource(methods))


class _Whole(Route):
    """A route that matches whole paths: Starlette's own overlooks a newline at the end."""

    def __init__(self, path: str, endpoint: ASGIApp) -> None:
        super().__init__(path, endpoint)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")


class _Rest(Convertor[str]):
    """The rest of a route, whatever is in it: Starlette's own ``path`` ends at a newline, and names may hold one."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """Return the text as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text as it is."""
        return value


register_url_convertor("rest", _Rest())


class Resource:
    """All methods of one path; a wrong one is 405 and names the right ones."""

    def __init__(self, methods: Mapping[str, Handler]) -> None:
        self.methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self.methods.get(method)
        if handler is None:
            await self._refused(scope)(scope, receive, send)
            return
        operation = getattr(handler, "operation", None)
        if isinstance(operation, Operation):
            scope["state"]["operation"] = operation.name
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)

    def _refused(self, scope: Scope) -> Response:
        allowed = sorted(self.methods)
        error = FluxError(
            Code.INVALID,
            f"cannot {scope['method']} that route: it takes {', '.join(allowed)}",
            {"allowed": allowed},
        )
        scope["state"]["outcome"] = error.code.value
        headers = {"allow": ", ".join(allowed)}
        return Response(wire.encode_error(error), 405, headers, media_type="application/json")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise FluxError(Code.NOT_FOUND, "cannot find that route: /openapi.json lists all there are")


async def _not_here(scope: Scope, receive: Receive, send: Send) -> None:
    raise FluxError(Code.NOT_FOUND, "cannot find that route: this is a node; ask its control plane")


async def _front(request: Request) -> Response:
    return RedirectResponse("/ui", 307)


async def _openapi(request: Request) -> Response:
    return Response(document(), media_type="application/json")


def _is_local(scope: Scope) -> bool:
    """Tell whether a request is this machine's own: what a proxy on it sends on names another host."""
    peer: Peer = scope["state"]["peer"]
    return peer.uid is not None or (peer.loopback and is_loopback(host_of(scope)))


class _Metrics:
    """The Prometheus page: open to this machine, for holders of a token elsewhere."""

    def __init__(self, gate: Gate | None, threads: Threads, render: Callable[[], bytes]) -> None:
        self._gate = gate
        self._threads = threads
        self._render = render

    async def __call__(self, request: Request) -> Response:
        """Answer with the counts as they are."""
        if not _is_local(request.scope):
            if self._gate is None:
                raise FluxError(Code.DENIED, "cannot show the metrics of a node to other machines: ask for them here")
            await self._threads.quick(actor_of, self._gate.platform, request.scope, self._gate.rates)
        return Response(await self._threads.quick(self._render), media_type=METRICS_TYPE)
