"""Data planes between processes: a control plane forwards what it admitted, a node serves it (spec: e2b, §4).

``Flux-User`` carries whom the request is made as; the node believes it because of the credential beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from flux.api.envd import application as envd
from flux.api.envd.call import Call, Tables
from flux.api.envd.errors import refusal
from flux.api.operations import OPERATIONS
from flux.api.rest.access import header
from flux.api.rest.forward import ForwardedReply
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from flux.api.rest.forward import Forwarder
    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.access import Actor
    from flux.core.control import Located

USER_HEADER = "flux-user"
_PASSED_ON = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"connect-accept-encoding",
        b"connect-content-encoding",
        b"connect-protocol-version",
        b"connect-timeout-ms",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"if-modified-since",
        b"if-none-match",
        b"if-range",
        b"keepalive-ping-interval",
        b"range",
    }
)
_METADATA = b"x-metadata-"
_PREFIX, _MOUNT = "/v1/sandboxes/", "envd"


def forwarded(
    forwarder: Forwarder, located: Located, actor: Actor, user: str | None, request: Request
) -> ForwardedReply:
    """Return the reply of the sandbox's node to an admitted request."""
    passed = {
        key.decode("ascii"): value.decode("latin-1")
        for key, value in request.headers.raw
        if key in _PASSED_ON or key.startswith(_METADATA)
    }
    # Without a word of the caller's, the client that forwards would ask for encodings of its own.
    passed.setdefault("accept-encoding", "identity")
    if user is not None:
        passed[USER_HEADER] = quote(user)
    scope = request.scope
    path = f"{_PREFIX}{quote(f'{located.sandbox_id}.{located.generation}')}/{_MOUNT}{scope['raw_path'].decode('ascii')}"
    query = scope["query_string"].decode("ascii")
    url = located.address.rstrip("/") + path + (f"?{query}" if query else "")
    return ForwardedReply(forwarder, located, actor, request, url=url, passed=passed)


class NodeDoor:
    """Takes what a control plane forwards to data planes, and passes everything else on.

    Args:
        gate: the node's gate.
        threads: where calls run.
        rest: what answers everything else.
    """

    def __init__(self, gate: Gate, threads: Threads, rest: ASGIApp) -> None:
        self._gate = gate
        self._threads = threads
        self._rest = rest
        self._tables: Tables = envd.new_tables()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        execution, mount, path = scope["path"].removeprefix(_PREFIX).partition(f"/{_MOUNT}/")
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX) or not mount or "/" in execution:
            await self._rest(scope, receive, send)
            return
        scope["state"]["operation"] = "sandbox.data"
        scope["path_params"] = {"sandbox": execution}
        try:
            call = await self._threads.quick(self._admit, execution, scope)
        except FluxError as error:
            scope["state"]["outcome"] = error.code.value
            await refusal(error, execution.partition(".")[0])(scope, receive, send)
            return
        scope["state"]["actor"] = call.actor
        await envd.serve(call, f"/{path}", scope, receive, send)

    def _admit(self, execution: str, scope: Scope) -> Call:
        actor = self._gate.admit(scope, OPERATIONS["sandbox.exec"], execution)
        sandbox_id, _, generation = execution.partition(".")
        if actor.sandbox_id != sandbox_id:
            raise FluxError(Code.DENIED, "cannot serve this request: it is of nobody who holds the sandbox's token")
        user = header(scope, USER_HEADER.encode("ascii"))
        return Call(
            plane=self._gate.platform,
            threads=self._threads,
            tables=self._tables,
            actor=actor,
            sandbox_id=sandbox_id,
            generation=int(generation),
            user=None if user is None else unquote(user),
        )
