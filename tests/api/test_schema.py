"""What ``/openapi.json`` promises, tried with many requests that keep to it and many that do not."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks as known
from schemathesis.specs.openapi import checks

from flux.api.rest.openapi import document
from tests.api.daemons import Daemon

EXAMPLES = 12
#: The reply of a stream or a terminal is no JSON of one shape; a doctor run is slow and takes no input.
LEFT_OUT = ("sandbox.terminal", "doctor")
CHECKS = (
    known.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.fixture
def schema(daemon: Daemon) -> Any:
    """The document of the running daemon, with the administrator's token."""
    import json

    found = schemathesis.openapi.from_dict(json.loads(document()))
    found.config.update(base_url=daemon.url, headers={"Authorization": f"Bearer {daemon.token}"})
    return found


lazy = schemathesis.pytest.from_fixture("schema").exclude(operation_id=LEFT_OUT)


@lazy.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_document_keeps_its_word(case: Any) -> None:
    response = case.call()
    assert response.status_code != 500, response.text
    case.validate_response(response, checks=CHECKS)
