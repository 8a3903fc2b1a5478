"""Every refusal has one shape, the right status, and says what to do."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flux.api.rest.bodies import BODY_BYTES_MAX
from tests.api.daemons import Daemon


def refused(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the error of a reply after checking its form."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error: dict[str, Any] = reply.json()
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == code
    assert error["message"].startswith("cannot ")
    assert isinstance(error["details"], dict)
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"workspace": 3}',
        b'{"net_ports": ["x"]}',
        b'{"name": "\\ud800"}',
        b"{}x",
    ],
)
def test_a_malformed_body_is_refused(http: httpx.Client, body: bytes) -> None:
    refused(http.post("/v1/sandboxes", content=body), 400, "invalid")


def test_a_deep_body_is_refused(http: httpx.Client) -> None:
    refused(http.post("/v1/sandboxes", content=b'{"metadata":' + b"[" * 100_000), 400, "invalid")


def test_a_wrong_type_names_the_field(http: httpx.Client) -> None:
    error = refused(http.post("/v1/sandboxes", json={"memory_mib": "much"}), 400, "invalid")
    assert error["details"]["field"] == "memory_mib"


@pytest.mark.parametrize(
    ("body", "field", "nearest"),
    [
        ({"workspce": "/x"}, "workspce", "workspace"),
        ({"mounts": [{"source": "/a", "targt": "/b"}]}, "targt", "target"),
        ({"zzzzzz": 1}, "zzzzzz", None),
    ],
)
def test_an_unknown_field_names_the_nearest(
    http: httpx.Client, body: dict[str, Any], field: str, nearest: str | None
) -> None:
    error = refused(http.post("/v1/sandboxes", json=body), 400, "invalid")
    assert error["details"] == {"field": field, "nearest": nearest}
    assert nearest is None or f"did you mean `{nearest}`?" in error["message"]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "limit=%ff", "limit=1&limit=2", "limti=1", "cursor=%ff%fe", "cursor=nonsense"],
)
def test_a_wrong_query_is_refused(http: httpx.Client, query: str) -> None:
    refused(http.get(f"/v1/sandboxes?{query}"), 400, "invalid")


def test_too_many_parameters_are_refused(http: httpx.Client) -> None:
    refused(http.get("/v1/sandboxes?" + "&".join(f"a{number}=1" for number in range(1000))), 400, "invalid")


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "301", "1e400"])
def test_a_wait_has_bounds(http: httpx.Client, timeout: str) -> None:
    reply = http.get(f"/v1/sandboxes/sbnone/changesets/csnone/wait?timeout_seconds={timeout}")
    refused(reply, 400, "invalid")


def test_parameters_where_none_are_taken_are_refused(http: httpx.Client) -> None:
    refused(http.get("/v1/doctor?full=1"), 400, "invalid")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1", "/v1/", "/v1/sandboxes/", "/v1/sandboxes/a/b", "/ui/../x", "/ui/x.js"]
)
def test_an_unknown_route_is_404(http: httpx.Client, path: str) -> None:
    refused(http.get(path), 404, "not_found")


@pytest.mark.parametrize("path", ["/", "/ui/", "/v1/sandboxes", "/v1/doctor", "/metrics"])
def test_a_newline_makes_another_route(http: httpx.Client, path: str) -> None:
    refused(http.get(f"{path}%0a"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sandboxes/%ff"),
        ("DELETE", "/v1/sandboxes/%ff"),
        ("GET", "/v1/sandboxes/%ff/changesets/%ff"),
        ("POST", "/v1/sandboxes/%ff/changesets/%ff/apply"),
        ("DELETE", "/v1/keys/%ff"),
    ],
)
def test_an_id_that_is_no_text_is_nobodys(http: httpx.Client, method: str, path: str) -> None:
    refused(http.request(method, path), 404, "not_found")


def test_an_encoded_slash_is_no_other_route(http: httpx.Client) -> None:
    refused(http.post("/v1/sandboxes/a%2Fexec", json={"command": "true"}), 404, "not_found")
    refused(http.get("/v1/sandboxes/a%2Fb%2Fc"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/sandboxes", ["GET", "POST"]),
        ("POST", "/v1/sandboxes/x", ["DELETE", "GET"]),
        ("DELETE", "/healthz", ["GET"]),
        ("TRACE", "/ui", ["GET"]),
        ("PUT", "/openapi.json", ["GET"]),
    ],
)
def test_a_wrong_method_names_the_right_ones(http: httpx.Client, method: str, path: str, allowed: list[str]) -> None:
    reply = http.request(method, path)
    error = refused(reply, 405, "invalid")
    assert error["details"]["allowed"] == allowed
    assert reply.headers["allow"] == ", ".join(allowed)


def test_what_does_not_exist_is_404(http: httpx.Client) -> None:
    for path in ("/v1/sandboxes/sbnone", "/v1/sandboxes/sbnone/changesets", "/v1/sandboxes/sbnone/changesets/csnone"):
        refused(http.get(path), 404, "not_found")


def test_a_large_body_is_413_before_it_is_sent(daemon: Daemon) -> None:
    place = urlsplit(daemon.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(
            f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n"
            f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode()
        )
        assert b"413" in connection.recv(4096).split(b"\r\n")[0]


def test_a_large_body_without_a_length_is_413(daemon: Daemon) -> None:
    place = urlsplit(daemon.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(
            f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        # Not a byte more than makes the body too large: what nobody reads would reset the connection over the reply.
        for size in (BODY_BYTES_MAX, 1):
            connection.sendall(f"{size:x}\r\n".encode() + b" " * size + b"\r\n")
        reply = HTTPResponse(connection)
        reply.begin()
        error = json.loads(reply.read())
    assert (reply.status, error["code"]) == (413, "too_large")
    assert error["details"]["limit_bytes"] == BODY_BYTES_MAX


def test_a_body_of_exactly_the_limit_is_read(http: httpx.Client) -> None:
    body = b'{"kind":"nosuchkind"}'
    refused(http.post("/v1/sandboxes", content=body + b" " * (BODY_BYTES_MAX - len(body))), 400, "invalid")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000,
    ],
)
def test_what_is_not_http_does_not_hurt(daemon: Daemon, request_bytes: bytes) -> None:
    place = urlsplit(daemon.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it may hang up before it has heard everything
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        assert not answer or answer.split(b" ")[1][:1] in (b"4", b"3")
    with daemon.anonymous() as client:
        assert client.get("/healthz").status_code == 200


def test_an_error_can_be_found_in_the_log(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    with daemon.http() as client:
        reply = client.get("/v1/sandboxes/sbnone")
    assert daemon.stop() == 0
    found = [line for line in daemon.records() if line.get("request_id") == reply.headers["x-request-id"]]
    assert len(found) == 1
    assert found[0]["operation"] == "sandbox.get"
    assert (found[0]["outcome"], found[0]["status"], found[0]["sandbox_id"]) == ("not_found", 404, "sbnone")
    assert found[0]["latency_ms"] >= 0


def test_no_secret_is_logged(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    with daemon.http() as client:
        made = client.post("/v1/keys", json={"name": "unlogged", "role": "agent"}).json()
    with daemon.http(made["key"]) as holder:
        assert holder.get("/v1/sandboxes").status_code == 200
    assert daemon.stop() == 0
    text = daemon.log.read_text()
    assert '"operation": "keys.create"' in text
    assert daemon.token not in text
    assert made["key"] not in text
