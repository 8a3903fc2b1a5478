"""The data plane's front door: nobody gets to another sandbox, or by its names to anything else of the daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flux.core.signature import sign
from tests.api.daemons import Daemon
from tests.api.envd import Envd

INTERNAL = ("/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("daemon") / "state")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def one(daemon: Daemon) -> Iterator[Envd]:
    made = Envd(daemon.url, daemon.token)
    yield made
    made.close()


@pytest.fixture(scope="module")
def other(daemon: Daemon) -> Iterator[Envd]:
    made = Envd(daemon.url, daemon.token)
    yield made
    made.close()


def ask(daemon: Daemon, path: str, method: str = "GET", **headers: str | None) -> httpx.Response:
    """Ask with exactly these headers; the host's name is the address unless one is given."""
    given = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return httpx.request(method, daemon.url + path, headers=given, timeout=30)


def test_a_token_opens_its_own_sandbox_only(daemon: Daemon, one: Envd, other: Envd) -> None:
    def status(sandbox_id: str, token: str | None) -> int:
        return ask(daemon, "/envs", e2b_sandbox_id=sandbox_id, x_access_token=token).status_code

    assert status(one.id, one.token) == status(other.id, other.token) == 200
    assert status(one.id, other.token) == status(other.id, one.token) == 401
    for token in (None, "", one.token[:-1], one.token + "0", one.token.upper(), daemon.token):
        assert status(one.id, token) == 401


def test_nothing_but_health_is_told_without_a_token(daemon: Daemon, one: Envd) -> None:
    assert ask(daemon, "/health", e2b_sandbox_id=one.id).status_code == 204
    for path in ("/envs", "/metrics", "/files?path=/etc/passwd", "/health/", "//health", "/process.Process/List"):
        assert ask(daemon, path, e2b_sandbox_id=one.id).status_code == 401


def test_the_administrator_s_key_is_no_token(daemon: Daemon, one: Envd) -> None:
    headers = {"authorization": f"Bearer {daemon.token}", "x_api_key": daemon.token}
    assert ask(daemon, "/envs", e2b_sandbox_id=one.id, **headers).status_code == 401


@pytest.mark.parametrize("sandbox_id", ["sb0000000000000000", "a.b", "../x", "SB", "x" * 100, "é"])
def test_a_sandbox_that_does_not_run(daemon: Daemon, one: Envd, sandbox_id: str) -> None:
    given = {"e2b-sandbox-id": sandbox_id.encode("latin-1"), "x-access-token": one.token.encode()}
    for path in ("/health", "/envs"):
        reply = httpx.get(daemon.url + path, headers=given)
        assert reply.status_code == 502
        assert reply.json()["message"] == "The sandbox was not found"
        assert reply.headers["should-retry"] == "false"


def test_a_host_name_names_the_sandbox(daemon: Daemon, one: Envd, other: Envd) -> None:
    host = f"49983-{one.id}.anything.example:1234"
    assert ask(daemon, "/health", host=host).status_code == 204
    assert ask(daemon, "/envs", host=host, x_access_token=one.token).status_code == 200
    assert ask(daemon, "/envs", host=host, x_access_token=other.token).status_code == 401
    assert ask(daemon, "/envs", host=host, x_access_token=one.token, e2b_sandbox_id=one.id).status_code == 200
    assert ask(daemon, "/envs", host=host, x_access_token=one.token, e2b_sandbox_id=other.id).status_code == 400


@pytest.mark.parametrize(
    "path", ["/v1/sandboxes", "/v1/keys", "/metrics", "/ui", "/", "/openapi.json", "/v2/sandboxes", "/sandboxes"]
)
def test_a_host_name_opens_nothing_else(daemon: Daemon, one: Envd, path: str) -> None:
    """A page that rebound its name to this machine gets to no route of the daemon, whatever it knows of keys."""
    keys = {"authorization": f"Bearer {daemon.token}", "x_api_key": daemon.token}
    host = f"49983-{one.id}.evil.example"
    assert ask(daemon, path, host=host).status_code == 401
    assert ask(daemon, path, host=host, **keys).status_code == 401
    reply = ask(daemon, path, host=host, x_access_token=one.token, **keys)
    assert (reply.status_code, reply.headers["content-type"]) in {
        (404, "application/json"),
        (200, "application/json"),  # the sandbox's own metrics
    }
    assert path == "/metrics" or reply.status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "49983-ab", "49983.evil.example", "x49983-ab.evil.example", "-ab.x"])
def test_foreign_hosts_are_refused_as_ever(daemon: Daemon, one: Envd, host: str) -> None:
    assert ask(daemon, "/v1/sandboxes", host=host, authorization=f"Bearer {daemon.token}").status_code == 403
    assert ask(daemon, "/envs", host=host, e2b_sandbox_id=one.id, x_access_token=one.token).status_code == 403


def test_no_websocket_comes_in_by_a_sandbox_s_host_name(daemon: Daemon, one: Envd) -> None:
    address = daemon.url.replace("http", "ws", 1) + f"/v1/sandboxes/{one.id}/pty"
    headers = {"authorization": f"Bearer {daemon.token}", "host": f"49983-{one.id}.evil.example"}
    with pytest.raises(InvalidStatus) as caught, connect(address, additional_headers=headers, proxy=None):
        pass
    assert caught.value.response.status_code in (400, 403)


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/keys", "/files/../v1/keys", "/process.Process/../v1/keys"])
def test_the_header_leads_to_the_data_plane_only(daemon: Daemon, one: Envd, path: str) -> None:
    request = httpx.Request(
        "GET", daemon.url + path, headers={**one.headers, "authorization": f"Bearer {daemon.token}"}
    )
    request.url = request.url.copy_with(raw_path=path.encode())
    with httpx.Client() as client:
        assert client.send(request).status_code == 404


@pytest.mark.parametrize("port", ["80", "8080", "49999", "0", "65536"])
def test_other_ports_are_not_forwarded(daemon: Daemon, one: Envd, port: str) -> None:
    for headers in (
        {"host": f"{port}-{one.id}.evil.example"},
        {"e2b_sandbox_id": one.id, "e2b_sandbox_port": port, "x_access_token": one.token},
    ):
        reply = ask(daemon, "/health", **headers)
        assert reply.status_code == 501
        assert "forwarded by host name" in reply.json()["message"]


@pytest.mark.parametrize("port", ["", "x", "-1", "1e3", "999999"])
def test_what_is_no_port(daemon: Daemon, one: Envd, port: str) -> None:
    assert ask(daemon, "/health", e2b_sandbox_id=one.id, e2b_sandbox_port=port).status_code == 400


@pytest.mark.parametrize("path", INTERNAL)
def test_what_is_the_host_s_only(daemon: Daemon, one: Envd, path: str) -> None:
    for method in ("GET", "POST"):
        assert ask(daemon, path, method, e2b_sandbox_id=one.id, x_access_token=one.token).status_code == 404


def signed(token: str, **changed: Any) -> dict[str, str]:
    """Return the query of a URL that reads a file."""
    expires = str(int(time.time()) + 600)
    query = {"path": "/home/user/none", "username": "user", "signature_expiration": expires}
    query["signature"] = sign(query["path"], "read", query["username"], token, expires)
    return {**query, **changed}


def test_a_signature_finds_its_sandbox(daemon: Daemon, one: Envd, other: Envd) -> None:
    def status(query: Any, method: str = "GET", **headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.request(method, f"{daemon.url}/files", params=query, headers=given, timeout=30).status_code

    assert status(signed(one.token)) == 404  # let in: the file is what is not there
    assert status(signed(one.token), e2b_sandbox_id=one.id) == 404
    assert status(signed(one.token), host=f"49983-{one.id}.any.example") == 404
    assert status(signed(one.token), e2b_sandbox_id=other.id) == 401
    assert status(signed("0" * 48)) == 401
    assert status(signed(one.token), method="POST") == 401
    for changed in ({"path": "/etc/passwd"}, {"username": "root"}, {"signature_expiration": "99999999999"}):
        assert status(signed(one.token, **changed)) == 401
    assert status([*signed(one.token).items(), ("path", "/etc/passwd")]) == 401
    over = str(int(time.time()) - 1)
    good = sign("/home/user/none", "read", "user", one.token, over)
    assert status(signed(one.token, signature_expiration=over, signature=good)) == 401
