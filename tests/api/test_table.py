"""The one table of operations, and that all four surfaces come from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.routing import Route

from flux.api.operations import OPERATIONS, Operation, parameters
from flux.api.rest import application
from flux.api.rest.errors import MEANINGS, STATUSES
from flux.api.rest.gate import UserGate
from flux.api.rest.openapi import document
from flux.core.access import ROLES
from flux.core.errors import Code

DOCUMENT = json.loads(document())


def routes() -> dict[str, set[str]]:
    """Return the methods of every HTTP route of the real application."""
    found = application.routes(UserGate(None), lambda: b"", exec_output_bytes=1)  # type: ignore[arg-type]
    resources = [(route.path, route.app) for route in found if isinstance(route, Route)]
    return {path: set(app.methods) for path, app in resources if isinstance(app, application.Resource)}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda row: row.name)
def test_an_operation_is_a_route(operation: Operation) -> None:
    assert operation.method in routes()[operation.path.replace("...}", ":rest}")]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda row: row.name)
def test_an_operation_is_documented(operation: Operation) -> None:
    entry = DOCUMENT["paths"][operation.path.replace("...}", "}")][operation.method.lower()]
    assert entry["operationId"] == operation.name
    named = {item["name"] for item in entry["parameters"] if item["in"] == "path"}
    assert named == set(parameters(operation.path))
    assert str(operation.status) in entry["responses"]
    for code in operation.errors:
        assert str(STATUSES[code]) in entry["responses"], code
    assert ("requestBody" in entry) == (operation.request is not None or operation.upload)


def test_nothing_is_documented_that_is_not_there() -> None:
    served = {path.replace(":rest}", "}") for path in routes()} | {"/v1/sandboxes/{sandbox}/pty"}
    assert set(DOCUMENT["paths"]) <= served


def test_every_reference_in_the_document_leads_somewhere() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    found = references(DOCUMENT)
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]


def test_every_code_has_one_status_with_a_meaning() -> None:
    assert set(STATUSES) == set(Code)
    assert set(STATUSES.values()) <= set(MEANINGS)


def test_every_operation_has_roles() -> None:
    assert set(OPERATIONS) == set(ROLES)
