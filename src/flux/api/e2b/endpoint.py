"""One E2B route: its methods as rows, who may call them, the body read leniently, every error in E2B's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flux.api.e2b import errors
from flux.api.e2b.auth import caller
from flux.api.e2b.errors import Doing
from flux.api.rest.bodies import json_reply, read_body
from flux.api.rest.endpoint import path_values
from flux.core import paths
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.control.platform import Platform
    from flux.core.access import Actor

_BODY_BYTES_MAX = 1024 * 1024
_QUERY_FIELDS_MAX = 64


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted request. ``query``: every value of each parameter. ``domain``: what sandboxes are told to have."""

    platform: Platform
    actor: Actor
    path: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    body: Any
    idempotency_key: str | None
    domain: str | None

    @property
    def sandbox(self) -> str:
        """The id in the route."""
        return self.path["sandbox"]

    def one(self, name: str) -> str | None:
        """Return the last value of a query parameter, ``None`` if it is not given."""
        values = self.query.get(name)
        return values[-1] if values else None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler answers: a status, JSON unless ``None``, and headers."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = {}


Handler: TypeAlias = Callable[[Call], Answer]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    ``operation``: for the log. ``shape``: of the body, ``None`` if there is none to read. ``slow``: it may take as long
    as a sandbox takes to start. ``doing``: for the error.
    """

    method: str
    path: str
    operation: str
    handler: Handler
    shape: Any = None
    slow: bool = False
    doing: Doing = "other"


class Resource:
    """All methods of one path.

    Args:
        gate: who may call, and what answers.
        threads: where calls run.
        rows: the methods.
        domain: what sandboxes are told to have as their domain.
    """

    def __init__(self, gate: Gate, threads: Threads, rows: Sequence[Row], domain: str | None) -> None:
        self._gate = gate
        self._threads = threads
        self._domain = domain
        self._rows = {row.method: row for row in rows}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        row = self._rows.get("GET" if scope["method"] == "HEAD" else scope["method"])
        doing: Doing = "other" if row is None else row.doing
        try:
            if row is None:
                raise self._wrong_method(scope)
            scope["state"]["operation"] = row.operation
            response = await self._answered(row, Request(scope, receive))
        except FluxError as error:
            scope["state"]["outcome"] = error.code.value
            response = errors.reply(error, doing)
        except (ClientDisconnect, OSError):
            raise
        except Exception as error:
            scope["state"]["outcome"] = Code.INTERNAL.value
            await errors.reply(_fault(error, scope))(scope, receive, send)
            raise
        await response(scope, receive, send)

    async def _answered(self, row: Row, request: Request) -> Response:
        actor = await self._threads.quick(caller, self._gate, request.scope)
        request.scope["state"]["actor"] = actor
        body = await read_body(request, _BODY_BYTES_MAX)
        call = Call(
            platform=self._gate.platform,
            actor=actor,
            path=path_values(row.path, request.scope["raw_path"]),
            query=_query(request.scope["query_string"]),
            body=None if row.shape is None else decoded(body, row.shape),
            idempotency_key=request.headers.get("idempotency-key"),
            domain=self._domain,
        )
        return await self._threads.run("sandbox.create" if row.slow else "sandbox.get", _reply, row.handler, call)

    def _wrong_method(self, scope: Scope) -> FluxError:
        allowed = sorted(self._rows)
        return FluxError(
            Code.INVALID,
            f"cannot {scope['method']} that route: it takes {', '.join(allowed)}",
            {"allowed": allowed, "status": 405},
        )


def _reply(handler: Handler, call: Call) -> Response:
    answer = handler(call)
    if answer.body is None:
        return Response(b"", answer.status, dict(answer.headers))
    response = json_reply(msgspec.json.encode(answer.body), answer.status)
    response.headers.update(answer.headers)
    return response


def decoded(body: bytes, shape: Any) -> Any:
    """Return a body as a shape; nothing is an empty object, and what the shape does not have is passed over.

    Raises:
        FluxError: ``invalid``.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FluxError(Code.INVALID, f"cannot read the request's body: {paths.printable(str(error))[:200]}") from None


def _query(raw: bytes) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(paths.from_bytes(raw), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError:
        raise FluxError(
            Code.INVALID, f"cannot read the query: more than {_QUERY_FIELDS_MAX} parameters, or none that can be read"
        ) from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _fault(error: Exception, scope: Scope) -> FluxError:
    request_id = scope["state"].get("request_id", "")
    return FluxError(
        Code.INTERNAL,
        f"cannot answer: a fault of Flux ({type(error).__name__}); its log has the request under id {request_id}",
    )
