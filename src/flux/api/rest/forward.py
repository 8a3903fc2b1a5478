"""Forwards the data plane of sandboxes that run on other nodes: both ways as it comes, without holding a body.

Whoever reads slowly slows the other side down. A caller that hangs up hangs up on the node, which kills its command.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

import httpx
from anyio import Event, create_task_group
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flux.api.rest.routed import headers_of
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.core.access import Actor
    from flux.core.control import Located

#: The certificate authority (PEM) by which a node is trusted, by its name; ``None``: the system's.
Authorities: TypeAlias = Callable[[str], str | None]

_CONNECT_SECONDS = 5.0
_IDLE_SECONDS = 10.0
_PASSED_ON = frozenset({b"content-type", b"content-length", b"accept", b"idempotency-key"})
_DROPPED = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"server", b"date", b"x-request-id"}
)
#: A node that vanished without a word ends its connections in about this many seconds.
_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Forwarder:
    """The connections to the data planes of other nodes.

    Args:
        authorities: by whom nodes are trusted.
    """

    def __init__(self, authorities: Authorities) -> None:
        self._authorities = authorities
        self._clients: dict[str, httpx.AsyncClient] = {}

    def client(self, located: Located) -> httpx.AsyncClient:
        """Return the connections to a node."""
        found = self._clients.get(located.node)
        if found is None or found.is_closed:
            found = self._clients[located.node] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    verify=self.context(located) or True,
                    limits=httpx.Limits(keepalive_expiry=_IDLE_SECONDS),
                    socket_options=_ALIVE,
                ),
                timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            )
        return found

    def context(self, located: Located) -> ssl.SSLContext | None:
        """Return how to speak TLS with a node, ``None`` if it does not."""
        if not located.address.startswith("https:"):
            return None
        return ssl.create_default_context(cadata=self._authorities(located.node))

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()


def url_of(located: Located, scope: Scope) -> str:
    """Return where on the node a request goes: the same route, with the execution for whatever it was called by."""
    parts = scope["raw_path"].decode("ascii").split("/")
    parts[3] = quote(f"{located.sandbox_id}.{located.generation}")
    query = scope["query_string"].decode("ascii")
    return located.address.rstrip("/") + "/".join(parts) + (f"?{query}" if query else "")


class ForwardedReply(Response):
    """The reply of another node to the request of this caller.

    Args:
        forwarder: the connections.
        located: the node, and the execution there.
        actor: who asks.
        request: what is asked.
        url: where it goes; not given, to the same route.
        passed: the headers that go with it; not given, those of Flux's own API.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        located: Located,
        actor: Actor,
        request: Request,
        *,
        url: str | None = None,
        passed: Mapping[str, str] | None = None,
    ) -> None:
        self.background = None
        self.status_code = 200
        self._client = forwarder.client(located)
        self._located = located
        self._request = request
        self._sent = Event()
        self._url = url or url_of(located, request.scope)
        if passed is None:
            passed = {key.decode(): value.decode("latin-1") for key, value in request.headers.raw if key in _PASSED_ON}
        self._passed = {**passed, **headers_of(located, actor)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry request and reply to their ends; hang up on the node when the caller hangs up."""
        try:
            async with create_task_group() as group:
                group.start_soon(self._until_hung_up, receive, group.cancel_scope.cancel)
                await self._carry(scope, send)
                group.cancel_scope.cancel()
        except* ClientDisconnect:
            pass  # there is nobody to tell

    async def _carry(self, scope: Scope, send: Send) -> None:
        request = self._client.build_request(scope["method"], self._url, headers=self._passed, content=self._body())
        try:
            reply = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise self._failed(error) from error
        try:
            headers = [(key.lower(), value) for key, value in reply.headers.raw if key.lower() not in _DROPPED]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
            async for chunk in reply.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.HTTPError as error:
            # The reply has begun: cutting it off is all that can be told, as with a node that serves callers itself.
            raise ConnectionError(f"the node {self._located.node} broke off its reply") from error
        finally:
            await reply.aclose()

    def _body(self) -> AsyncIterator[bytes] | None:
        if "content-length" in self._passed or "transfer-encoding" in self._request.headers:
            return self._chunks()
        self._sent.set()
        return None

    async def _chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._request.stream():
            if chunk:
                yield chunk
        self._sent.set()

    async def _until_hung_up(self, receive: Receive, cancel: Callable[[], None]) -> None:
        """Notice that the caller hangs up; while its body comes, reading that notices it."""
        await self._sent.wait()
        while (await receive())["type"] != "http.disconnect":
            pass
        cancel()

    def _failed(self, error: httpx.HTTPError) -> FluxError:
        node, sandbox_id = self._located.node, self._located.sandbox_id
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            return FluxError(
                Code.UNAVAILABLE,
                f"cannot reach the node {node}, where the sandbox {sandbox_id} runs: nothing was changed; try again",
                {"node": node},
            )
        if self._request.method in ("GET", "HEAD"):
            return FluxError(
                Code.UNAVAILABLE, f"cannot read the reply of the node {node}: the connection broke; try again"
            )
        return FluxError(
            Code.UNKNOWN_OUTCOME,
            f"cannot tell the outcome: the connection to the node {node} broke after the request was sent; look at the "
            f"files and changesets of the sandbox {sandbox_id} before trying again",
            {"node": node},
        )
