"""What ``/openapi.json`` promises, tried with many requests that keep to it and many that do not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis import checks as general
from schemathesis.specs.openapi import checks

from flux.api.operations import OPERATIONS, Operation
from flux.api.rest.openapi import document
from tests.api.daemons import Daemon

EXAMPLES = 15
DOCUMENT = json.loads(document())
WAITS = {"changeset.wait": "timeout_seconds", "audit.list": "wait_seconds"}
CHECKS = (
    general.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.fixture(scope="module")
def names(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A sandbox and a changeset that exist, so that more than their absence is tried."""
    place = tmp_path_factory.mktemp("schema")
    (place / "old").write_text("old\n")
    with daemon.http() as client:
        sandbox = client.post("/v1/sandboxes", json={"workspace": str(place)}).json()["id"]
        made = client.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": "echo new > new; rm old"}).json()
    return {"sandbox": sandbox, "changeset": made["id"], "path": "new"}


def hurry(operation: Operation, case: Any, mode: GenerationMode) -> None:
    """Let a call that may wait not wait; where it is to be wrong, leave a wrong time as it is."""
    name = WAITS.get(operation.name)
    if name is None:
        return
    query = dict(case.query or {})
    with contextlib.suppress(TypeError, ValueError):
        if mode is GenerationMode.POSITIVE or float(query.get(name, 1)) >= 0:
            case.query = {**query, name: 0}


def tried(daemon: Daemon, operation: Operation, mode: GenerationMode, names: dict[str, str]) -> None:
    """Send requests made from the document and hold the replies against it."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=daemon.url)
    described = schema[operation.path.replace("...}", "}")][operation.method]
    headers = {"Authorization": f"Bearer {daemon.token}"}

    @given(case=described.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and operation.method != "DELETE":
            case.path_parameters.update({name: names[name] for name in case.path_parameters if name in names})
        hurry(operation, case, mode)
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS, headers=headers)

    run()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda row: row.name)
def test_the_document_keeps_its_word(daemon: Daemon, operation: Operation, names: dict[str, str]) -> None:
    tried(daemon, operation, GenerationMode.POSITIVE, names)
    with daemon.anonymous() as client:
        assert client.get("/healthz").json()["status"] == "ok"


@pytest.mark.parametrize(
    "operation",
    [row for row in OPERATIONS.values() if row.request is not None or row.query is not None],
    ids=lambda row: row.name,
)
def test_what_the_document_does_not_allow_does_no_harm(
    daemon: Daemon, operation: Operation, names: dict[str, str]
) -> None:
    tried(daemon, operation, GenerationMode.NEGATIVE, names)
    with daemon.anonymous() as client:
        assert client.get("/healthz").json()["status"] == "ok"


def test_the_document_is_what_the_daemon_serves(daemon: Daemon) -> None:
    served = httpx.get(f"{daemon.url}/openapi.json").json()
    assert served == DOCUMENT
    assert served["openapi"] == "3.1.0"
