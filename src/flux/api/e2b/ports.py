"""The ports of sandboxes: what listens in one is reached by a host name below the daemon's domain (spec: e2b, §2).

A name leads to the loopback of that sandbox and nowhere else: no address is looked up, and no request that comes by
such a name is answered by anything of Flux.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from flux.api.e2b.duplex import duplex
from flux.api.e2b.exchange import BAD_REPLY, exchange
from flux.api.envd.errors import json_reply, refusal, told
from flux.api.rest.access import address_of, header
from flux.api.rest.guard import FOREIGN
from flux.core.access import Actor, bearer_of
from flux.core.errors import Code, FluxError
from flux.ports.substrate import CLOSED_PORT, NO_WAY_IN

if TYPE_CHECKING:
    import socket

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from flux.api.e2b.addressing import Target
    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.control import Located

#: Connections at once; all of them leave Flux's own requests room below what the daemon takes.
OF_ONE_SANDBOX_MAX = 128
OF_ALL_MAX = 512
#: How long nothing may pass over a connection.
IDLE_SECONDS = 600.0
_STATUSES = {CLOSED_PORT: 502, BAD_REPLY: 502, NO_WAY_IN: 501}
_CLOSED = "The sandbox is running but port is not open"


class PortDoor:
    """Carries requests to the ports of sandboxes.

    Args:
        gate: what answers, and how often callers may ask.
        threads: where calls run.
        idle_seconds: how long nothing may pass over a connection.
    """

    def __init__(self, gate: Gate, threads: Threads, idle_seconds: float = IDLE_SECONDS) -> None:
        self._gate = gate
        self._threads = threads
        self._idle_seconds = idle_seconds
        self._held: Counter[str] = Counter()

    async def serve(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request for a port of a sandbox."""
        sandbox_id = target.sandbox_id or ""
        scope["state"]["operation"] = "sandbox.port"
        scope["path_params"] = {"sandbox": sandbox_id}
        try:
            _refuse_others(scope)
            located = await self._threads.run("sandbox.get", self._admit, sandbox_id, scope)
            with self._counted(sandbox_id):
                await self._carry(located, target.port, scope, receive, send)
        except Exception as error:
            inner = _innermost(error)
            if not isinstance(inner, FluxError):
                raise
            scope["state"][FOREIGN] = False
            scope["state"]["outcome"] = inner.code.value
            await _refused(inner, target)(scope, receive, send)

    async def _carry(self, located: Located, port: int, scope: Scope, receive: Receive, send: Send) -> None:
        carry = duplex if scope["type"] == "websocket" else exchange
        async with self._connected(located, port) as connection:
            scope["state"][FOREIGN] = True
            await carry(connection, scope, receive, send, self._idle_seconds)

    @asynccontextmanager
    async def _connected(self, located: Located, port: int) -> AsyncIterator[socket.socket]:
        """Give a connection to a port, wherever the sandbox runs."""
        actor = bearer_of(located.sandbox_id)
        if located.local or self._gate.forwarder is None:
            execution = f"{located.sandbox_id}.{located.generation}"
            plane = self._gate.platform.executions
            with await self._threads.connection(plane.connect_port, actor, execution, port) as connection:
                yield connection
            return
        from flux.api.e2b.tunnel import tunnel

        async with tunnel(self._gate.forwarder, located, actor, port) as connection:
            with connection:
                yield connection

    def _admit(self, sandbox_id: str, scope: Scope) -> Located:
        """Return where the sandbox is; wakes it if use may do that. Asks the store."""
        token = header(scope, b"e2b-traffic-access-token")
        reach = self._gate.platform.reach_ports
        found: list[Located] = []

        def authenticate(_: str) -> Actor:
            found.append(reach(sandbox_id, token))
            return bearer_of(sandbox_id)

        if token is None:
            found.append(reach(sandbox_id, None))
        else:
            self._gate.rates.guesses.authenticate(address_of(scope), f"{sandbox_id} ports {token}", authenticate)
        self._gate.rates.check_sandbox(sandbox_id)
        return found[0]

    @contextmanager
    def _counted(self, sandbox_id: str) -> Iterator[None]:
        """Hold one of the connections that there may be at once."""
        if self._held[sandbox_id] >= OF_ONE_SANDBOX_MAX or self._held.total() >= OF_ALL_MAX:
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot connect to the sandbox {sandbox_id}: {OF_ONE_SANDBOX_MAX} connections to the ports of one "
                f"sandbox and {OF_ALL_MAX} to all may be open at once; close some",
                {"rate": "connections", "retry_after_seconds": 1},
            )
        self._held[sandbox_id] += 1
        try:
            yield
        finally:
            self._held[sandbox_id] -= 1
            if not self._held[sandbox_id]:
                del self._held[sandbox_id]


def _refuse_others(scope: Scope) -> None:
    """Refuse what asks a proxy for somewhere else: only a path of the sandbox's own can be asked for."""
    if scope.get("method") == "CONNECT" or not scope["raw_path"].startswith(b"/"):
        raise FluxError(Code.INVALID, "cannot carry this request: it takes a path that begins with /, and no CONNECT")


def _refused(error: FluxError, target: Target) -> Response:
    reason, status = error.details.get("reason"), None
    if isinstance(reason, str):
        status = _STATUSES.get(reason)
    if status is not None:
        message = _CLOSED if reason == CLOSED_PORT else told(error.message)
        body = {"sandboxId": target.sandbox_id, "message": message, "port": target.port, "code": status}
        return json_reply(status, body)
    if error.code in (Code.DENIED, Code.UNAUTHENTICATED):
        return json_reply(403, {"sandboxId": target.sandbox_id, "message": told(error.message), "code": 403})
    return refusal(error, target.sandbox_id or "")


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
