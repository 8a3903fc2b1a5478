"""Who asks too often is refused with 429 over HTTP; the administrator is not (spec: e2b, E8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from flux.core.requests import CreateKey, CreateSandbox
from tests.api.daemons import Daemon


@pytest.fixture
def strict(start_daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A daemon that lets each key ask three times, and has a domain."""
    file = tmp_path / "strict.toml"
    file.write_text('[api]\nrequests_per_second = 0.05\nburst = 3\n[e2b]\ndomain = "boxes.example"\n')
    return start_daemon("--config", str(file))


def test_a_key_that_asks_too_often_is_told_when_to_come_back(strict: Daemon) -> None:
    admin = strict.client()
    first = admin.call("keys.create", body=CreateKey(name="first", role="user"))["key"]
    second = admin.call("keys.create", body=CreateKey(name="second", role="user"))["key"]
    with strict.http(first) as client:
        replies = [client.get("/v1/sandboxes") for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    last = replies[-1]
    assert last.json()["code"] == "exhausted"
    seconds = last.json()["details"]["retry_after_seconds"]
    assert last.headers["retry-after"] == str(seconds)
    assert 1 <= seconds <= 20
    with strict.http(second) as client:
        assert client.get("/v1/sandboxes").status_code == 200
    with strict.http() as client:
        assert {client.get("/v1/sandboxes").status_code for _ in range(10)} == {200}


def test_wrong_keys_are_refused_unseen_after_a_while_but_known_ones_are_served(strict: Daemon) -> None:
    with strict.http() as known:
        assert known.get("/v1/sandboxes").status_code == 200
        with strict.http("wrong") as client:
            statuses = [client.get("/v1/sandboxes").status_code for _ in range(200)]
        assert statuses[:100] == [401] * 100
        assert set(statuses[100:]) <= {401, 429}
        assert statuses.count(429) > 50
        assert known.get("/v1/sandboxes").status_code == 200


def test_through_a_proxy_the_metrics_need_a_key(strict: Daemon) -> None:
    proxied = {"host": "api.boxes.example"}
    with strict.anonymous() as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/metrics", headers=proxied).status_code == 401
    with strict.http() as client:
        assert client.get("/metrics", headers=proxied).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("api.boxes.example", 200),
        ("API.Boxes.Example:443", 200),
        ("49983-sb1.boxes.example", 502),
        ("sandbox.boxes.example", 200),
        ("boxes.example", 403),
        ("www.boxes.example", 403),
        ("api.boxes.example.attacker.example", 403),
        ("x.api.boxes.example", 403),
        ("attacker.example", 403),
        ("localhost", 200),
    ],
)
def test_the_names_of_the_domain_are_answered_for(strict: Daemon, host: str, status: int) -> None:
    with httpx.Client(base_url=strict.url) as client:
        assert client.get("/healthz", headers={"host": host}).status_code == status


def test_a_sandboxs_clients_are_bounded_together_and_requests_are_counted(
    start_daemon: Callable[..., Daemon], tmp_path: Path, workspace: Path
) -> None:
    file = tmp_path / "narrow.toml"
    file.write_text("[api]\nsandbox_requests_per_second = 0.05\nsandbox_burst = 2\n")
    running = start_daemon("--config", str(file))
    sandbox = running.client().call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    with running.anonymous(headers={"e2b-sandbox-id": sandbox}) as client:
        replies = [client.get("/health") for _ in range(3)]
        assert [reply.status_code for reply in replies] == [204, 204, 429]
        assert 1 <= int(replies[-1].headers["retry-after"]) <= 20
    with running.anonymous() as client:
        counted = client.get("/metrics").text
    assert 'flux_requests_total{operation="sandbox.data",status="204"} 2.0' in counted
    assert 'flux_requests_total{operation="sandbox.data",status="429"} 1.0' in counted
