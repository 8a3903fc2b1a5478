"""``/openapi.json``: OpenAPI 3.1, derived from the table of operations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

import flux
from flux.api.operations import OPERATIONS, Operation, parameters
from flux.api.rest.errors import MEANINGS, STATUSES
from flux.api.rest.terminal import DESCRIPTION as TERMINAL_DESCRIPTION
from flux.api.rest.terminal import ROUTE as TERMINAL_ROUTE
from flux.api.views import ErrorView
from flux.core.errors import Code

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_BYTES: dict[str, Any] = {"application/octet-stream": {}}
_SHARED = (Code.INVALID, Code.INTERNAL, Code.UNAVAILABLE)
_CLOSED = (Code.UNAUTHENTICATED, Code.DENIED)

_PARAMETERS = {
    "sandbox": "A sandbox's id or name",
    "changeset": "A changeset's id",
    "artifact": "An artifact's id, or a snapshot's name",
    "node": "A node's name",
    "key": "A key's id or name",
    "path": "The path of a file in the workspace, without its first slash; its own slashes stand as they are",
}
_STREAM = (
    "With `stream: true` the reply is `application/x-ndjson`: one event per line, `start`, then `stdout` and `stderr` "
    "with `data` in base64, then `exit`. A caller that hangs up before the end kills the command."
)


@cache
def document() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(_document())


def _document() -> dict[str, Any]:
    rows = list(OPERATIONS.values())
    shapes = [ErrorView, *(row.request for row in rows if row.request), *(row.reply for row in rows if row.reply)]
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REFERENCE)
    by_shape = dict(zip(shapes, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path.replace("...}", "}"), {})[row.method.lower()] = _operation(row, by_shape)
    paths.update(_others())
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flux", "version": flux.__version__, "summary": "Sandboxes whose commands are reviewed"},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "description": _description(row),
        "parameters": [*_path_parameters(row), *_query_parameters(row), *_header_parameters(row)],
        "responses": {str(row.status): _success(row, schemas), **_errors(row, schemas[ErrorView])},
    }
    if row.open:
        result["security"] = []
    if row.request is not None:
        required = any(field.required for field in msgspec.structs.fields(row.request))
        result["requestBody"] = {"required": required, "content": {_JSON: {"schema": schemas[row.request]}}}
    if row.upload:
        result["requestBody"] = {"required": True, "content": _BYTES}
    return result


def _description(row: Operation) -> str:
    who = "Needs no token." if row.open else f"Roles: {', '.join(sorted(row.roles))}."
    return f"{_STREAM} {who}" if row.name == "sandbox.exec" else who


def _success(row: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    if row.reply is None:
        return {"description": "The bytes", "content": _BYTES}
    content: dict[str, Any] = {_JSON: {"schema": schemas[row.reply]}}
    if row.name == "sandbox.exec":
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    return {"description": row.summary, "content": content}


def _errors(row: Operation, schema: dict[str, Any]) -> dict[str, Any]:
    codes = {*_SHARED, *row.errors}
    if not row.open:
        codes.update(_CLOSED)
    if "{" in row.path:
        codes.add(Code.NOT_FOUND)
    if row.request is not None:
        codes.add(Code.TOO_LARGE)
    if row.data:
        codes.update((Code.ILLEGAL_STATE, Code.FENCED))
    if row.data or row.method != "GET":
        codes.add(Code.UNKNOWN_OUTCOME)
    statuses: dict[int, list[str]] = {}
    for code in sorted(codes):
        statuses.setdefault(STATUSES[code], []).append(code.value)
    return {str(status): _error(status, names, schema) for status, names in sorted(statuses.items())}


def _error(status: int, names: Iterable[str], schema: dict[str, Any]) -> dict[str, Any]:
    listed = ", ".join(f"`{name}`" for name in names)
    return {"description": f"{MEANINGS[status]} (code {listed})", "content": {_JSON: {"schema": schema}}}


def _path_parameters(row: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in parameters(row.path)
    ]


def _query_parameters(row: Operation) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    _, components = msgspec.json.schema_components([row.query])
    shape = components[row.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in shape["required"], "schema": schema}
        for name, schema in shape["properties"].items()
    ]


def _header_parameters(row: Operation) -> list[dict[str, Any]]:
    if not row.idempotent_by_key:
        return []
    description = "The same key and body give the same result again; the same key with another body is 409"
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    return [
        {"name": "Idempotency-Key", "in": "header", "required": False, "description": description, "schema": schema}
    ]


def _others() -> dict[str, Any]:
    """Return the routes that belong to no operation."""
    metrics = {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    own = {"description": "This document", "content": {_JSON: {"schema": {"type": "object"}}}}
    switch = {"description": "The WebSocket is open"}
    sandbox = {"name": "sandbox", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Prometheus metrics; over loopback they need no token",
                "responses": {"200": metrics},
            }
        },
        "/openapi.json": {
            "get": {"operationId": "openapi", "summary": "This document", "security": [], "responses": {"200": own}}
        },
        TERMINAL_ROUTE: {
            "get": {
                "operationId": "sandbox.terminal",
                "summary": "A command with its streams over a WebSocket",
                "description": TERMINAL_DESCRIPTION,
                "parameters": [sandbox],
                "responses": {"101": switch},
            }
        },
    }
