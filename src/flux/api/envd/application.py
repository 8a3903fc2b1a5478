"""The data plane of one sandbox: paths to services, the same on a daemon of every role (spec: e2b, §4)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from flux.api.envd import connect, files, filesystem, process
from flux.api.envd.call import Call, Tables
from flux.api.envd.errors import json_reply, plain_reply
from flux.api.envd.methods import Method
from flux.api.envd.processes import ProcessTable
from flux.core.errors import Code, FluxError
from flux.engine.lifecycle.metering import sample_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.engine.lifecycle.usage import Measured

#: Answers one path outside of the services, whatever the method.
Plain: TypeAlias = Callable[[Call, Request], Awaitable[Response]]

HEALTH = "/health"
#: What only the host of a sandbox may ask.
INTERNAL = frozenset({"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw"})
#: Services by the first part of their paths, with their methods by the second.
SERVICES: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {"process.Process": process.METHODS, "filesystem.Filesystem": filesystem.METHODS}
)


def new_tables() -> Tables:
    """Return the tables of a process that serves data planes."""
    return Tables(ProcessTable())


async def serve(call: Call, path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one admitted request for ``path`` of a sandbox's data plane."""
    service, _, name = path.removeprefix("/").partition("/")
    if service in SERVICES:
        method = SERVICES[service].get(name)
        if method is not None:
            await connect.serve(method, call, scope, receive, send)
        else:
            await _unimplemented(path)(scope, receive, send)
        return
    try:
        response = await _plain(call, path, Request(scope, receive))
    except FluxError as error:
        scope["state"]["outcome"] = error.code.value
        response = plain_reply(error)
    await response(scope, receive, send)


async def _plain(call: Call, path: str, request: Request) -> Response:
    answer = PLAIN.get(path)
    if answer is None:
        raise FluxError(Code.NOT_FOUND, "cannot find that route: a sandbox has files, processes, health and metrics")
    return await answer(call, request)


def _unimplemented(path: str) -> Response:
    return json_reply(404, {"code": "unimplemented", "message": f"cannot call {path[:80]}: there is no such method"})


def refuse_other_methods(request: Request, *allowed: str) -> None:
    """Refuse a request with another method than the ``allowed`` ones. Raises ``FluxError`` ``invalid``."""
    if request.method not in allowed:
        raise FluxError(Code.INVALID, f"cannot {request.method} that route: it takes {', '.join(allowed)}")


async def health(call: Call, request: Request) -> Response:
    """Tell that the sandbox runs: its requests would not come here else."""
    return Response(b"", 204)


async def environment(call: Call, request: Request) -> Response:
    """Tell the environment that the sandbox was created with."""
    refuse_other_methods(request, "GET")
    return json_reply(200, await call.threads.quick(call.plane.environment, call.actor, call.sandbox))


async def metrics(call: Call, request: Request) -> Response:
    """Tell what the sandbox uses."""
    refuse_other_methods(request, "GET")
    return json_reply(200, metrics_of(await call.threads.quick(call.plane.usage, call.actor, call.sandbox)))


def metrics_of(used: Measured) -> dict[str, object]:
    """Return a measurement in the words of the data plane; the processors' share since the execution began."""
    sample = sample_of(used, None)
    return {
        "ts": int(used.at),
        "timestamp": datetime.fromtimestamp(used.at, UTC).isoformat(timespec="seconds"),
        "cpu_count": max(1, round(used.cpus)),
        "cpu_used_pct": sample.cpu_used_pct,
        "mem_total": used.memory_total,
        "mem_used": sample.memory_used,
        "mem_cache": used.memory_cache,
        "disk_used": used.disk_used,
        "disk_total": used.disk_total,
    }


def user_of(authorization: str | None) -> str | None:
    """Return whom a request is made as: the name in a Basic header; its password is nobody's.

    Raises:
        FluxError: ``invalid`` for a Basic header that cannot be read.
    """
    scheme, _, coded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name = base64.b64decode(coded.strip(), validate=True).decode("utf-8").partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise FluxError(Code.INVALID, "cannot tell the user: the header Authorization is no Basic one") from None
    return name or None


PLAIN: Mapping[str, Plain] = MappingProxyType(
    {
        HEALTH: health,
        "/envs": environment,
        "/metrics": metrics,
        "/files": files.serve,
        "/files/compose": files.compose,
    }
)
