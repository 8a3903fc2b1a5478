"""The ASGI application: one route per path of the table of operations, and what belongs to no operation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute

from flux.api import wire
from flux.api.operations import OPERATIONS, Operation
from flux.api.rest import page
from flux.api.rest.access import Peer, actor_of
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

    from flux.control.platform import Platform

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build(
    platform: Platform,
    observer: RequestObserver,
    metrics: Callable[[], bytes],
    *,
    exec_output_bytes: int,
    any_host: bool = False,
) -> ASGIApp:
    """Return the application.

    Args:
        platform: what answers.
        observer: hears of every request.
        metrics: renders the Prometheus page.
        exec_output_bytes: how much of each output the reply of an exec holds.
        any_host: answer for any Host header, as behind a proxy.
    """
    found = routes(platform, metrics, exec_output_bytes=exec_output_bytes)
    return Guard(Router(found, redirect_slashes=False, default=_nowhere), observer, any_host=any_host)


def routes(platform: Platform, metrics: Callable[[], bytes], *, exec_output_bytes: int) -> list[BaseRoute]:
    """Return all routes; those of HTTP lead to a ``Resource`` each."""
    threads = Threads()
    resources = [_route(path, methods) for path, methods in _by_path(platform, threads, exec_output_bytes).items()]
    return [
        *resources,
        _Whole("/openapi.json", Resource({"GET": _openapi})),
        _Whole("/metrics", Resource({"GET": _Metrics(platform, threads, metrics)})),
        _Whole("/", Resource({"GET": _front})),
        *(_Whole(path, Resource({"GET": page.serve})) for path in page.ROUTES),
        WebSocketRoute(TERMINAL_ROUTE, TerminalEndpoint(platform, threads)),
    ]


def _by_path(platform: Platform, threads: Threads, exec_output_bytes: int) -> dict[str, dict[str, Endpoint]]:
    paths: dict[str, dict[str, Endpoint]] = {}
    for row in OPERATIONS.values():
        run = row.name == "sandbox.exec"
        endpoint = ExecEndpoint(platform, threads, exec_output_bytes) if run else Endpoint(platform, threads, row)
        paths.setdefault(row.path, {})[row.method] = endpoint
    return paths


def _route(path: str, methods: Mapping[str, Endpoint]) -> Route:
    return _Whole(path.replace("...}", ":rest}"), Resource(methods))


class _Whole(Route):
    """A route that matches whole paths: Starlette's own overlooks a newline at the end."""

    def __init__(self, path: str, endpoint: Resource) -> None:
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


async def _front(request: Request) -> Response:
    return RedirectResponse("/ui", 307)


async def _openapi(request: Request) -> Response:
    return Response(document(), media_type="application/json")


class _Metrics:
    """The Prometheus page: open over loopback, for holders of a token elsewhere."""

    def __init__(self, platform: Platform, threads: Threads, render: Callable[[], bytes]) -> None:
        self._platform = platform
        self._threads = threads
        self._render = render

    async def __call__(self, request: Request) -> Response:
        """Answer with the counts as they are."""
        peer: Peer = request.scope["state"]["peer"]
        if not peer.loopback:
            await self._threads.quick(actor_of, self._platform, request.scope)
        return Response(await self._threads.quick(self._render), media_type=METRICS_TYPE)
