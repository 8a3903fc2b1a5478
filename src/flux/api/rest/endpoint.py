"""One route: all the operations that share a path, told apart by method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from flux.api import wire
from flux.api.calls import Arguments, Content
from flux.api.operations import Operation
from flux.api.rest.bodies import BODY_BYTES_MAX, ContentReply, json_reply, read_body, upload
from flux.core import paths
from flux.core.access import Actor
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Scope

    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.control import Located


class Endpoint:
    """Answers the requests of one operation.

    Args:
        gate: who may call, and what answers.
        threads: where its calls run.
        operation: the row of the table.
    """

    def __init__(self, gate: Gate, threads: Threads, operation: Operation) -> None:
        self._gate = gate
        self._platform = gate.platform
        self._threads = threads
        self.operation = operation

    async def __call__(self, request: Request) -> Response:
        """Check who calls and what is asked, run the call, send its result."""
        sandbox = path_values(self.operation.path, request.scope["raw_path"]).get("sandbox")
        actor, located = await self._threads.quick(self._admit, request.scope, sandbox)
        request.scope["state"]["actor"] = actor
        if located is not None and self._gate.forwarder is not None:
            from flux.api.rest.forward import ForwardedReply

            return ForwardedReply(self._gate.forwarder, located, actor, request)
        return await self.answer(request, actor)

    def _admit(self, scope: Scope, sandbox: str | None) -> tuple[Actor, Located | None]:
        actor = self._gate.admit(scope, self.operation, sandbox)
        return actor, self._gate.elsewhere(actor, self.operation, sandbox)

    async def answer(self, request: Request, actor: Actor) -> Response:
        """Answer a caller who may ask."""
        arguments = await self.arguments(request, BODY_BYTES_MAX)
        if self.operation.reply is None:
            content = await self._threads.run(self.operation.name, self._call, actor, arguments)
            return ContentReply(content, self._threads)
        body = await self._threads.run(self.operation.name, self._encoded, actor, arguments)
        return json_reply(body, self.operation.status)

    async def arguments(self, request: Request, body_bytes_max: int) -> Arguments:
        """Return what the request carries, checked against the operation's row."""
        operation = self.operation
        query = wire.decode_query(operation, request.scope["query_string"])
        body = None if operation.upload else await read_body(request, body_bytes_max)
        key = request.headers.get("idempotency-key")
        return Arguments(
            path=path_values(operation.path, request.scope["raw_path"]),
            query=query,
            body=None if body is None else wire.decode_body(operation, body),
            idempotency_key=key if operation.idempotent_by_key else None,
            upload=upload(request) if operation.upload else (),
        )

    def _call(self, actor: Actor, arguments: Arguments) -> Content:
        content: Content = self.operation.call(self._platform, actor, arguments)
        return content

    def _encoded(self, actor: Actor, arguments: Arguments) -> bytes:
        """Return the reply as JSON, encoded in the worker thread and once."""
        view: Any = self.operation.call(self._platform, actor, arguments)
        return wire.encode_reply(view)


def path_values(template: str, raw: bytes) -> Mapping[str, str]:
    """Return the parameters of a route from the path as it was sent, whose bytes they keep.

    Raises:
        FluxError: ``not_found`` if an encoded slash makes another path of it.
    """
    names = template.split("/")
    rest = names[-1].endswith("...}")
    values = raw.partition(b"?")[0].split(b"/", len(names) - 1) if rest else raw.partition(b"?")[0].split(b"/")
    if len(values) != len(names):
        raise FluxError(Code.NOT_FOUND, "cannot find that route: a name in it holds a slash")
    return {
        name.strip("{}").removesuffix("..."): paths.from_bytes(unquote_to_bytes(value))
        for name, value in zip(names, values, strict=True)
        if name.startswith("{")
    }
