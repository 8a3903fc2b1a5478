"""Who may call what: every operation × every role, tokens, the socket, and pages of other sites."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest

from flux.api import wire
from flux.api.http import HttpClient
from flux.api.operations import OPERATIONS, Operation, parameters
from flux.core.access import Role
from flux.core.requests import CreateKey
from tests.api.daemons import Daemon

MATRIX = [(row, role) for row in OPERATIONS.values() for role in Role]


def ask(client: httpx.Client, row: Operation) -> httpx.Response:
    """Call an operation with names that exist for nobody, so that only who asks decides."""
    path = wire.route(row, dict.fromkeys(parameters(row.path), "none"))
    body = b"x" if row.upload else b"{}" if row.request else None
    query = {"path": "/x"} if row.query is not None and "path" in row.query.__struct_fields__ else None
    return client.request(row.method, path, content=body, params=query)


@pytest.mark.parametrize(("row", "role"), MATRIX, ids=[f"{row.name}-{role.value}" for row, role in MATRIX])
def test_a_role_may_do_what_the_table_says(daemon: Daemon, keys: dict[Role, str], row: Operation, role: Role) -> None:
    with daemon.http(keys[role]) as client:
        reply = ask(client, row)
    if role in row.roles:
        assert reply.status_code not in (401, 403), reply.text
    else:
        assert reply.status_code == 403
        assert reply.json()["code"] == "denied"
        assert reply.json()["details"]["allowed"] == sorted(row.roles)


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=lambda row: row.name)
def test_without_a_token_only_health_answers(daemon: Daemon, row: Operation) -> None:
    with daemon.anonymous() as client:
        reply = ask(client, row)
    if row.open:
        assert reply.status_code == 200
    else:
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["", "Bearer", "Basic abc", "Bearer nonsense", "Bearer \xff\xfe", "token"])
def test_a_wrong_token_is_nobody(daemon: Daemon, header: str) -> None:
    with daemon.anonymous(headers=[(b"authorization", header.encode("latin-1"))]) as client:
        assert client.get("/v1/sandboxes").status_code == 401


def test_a_revoked_key_stops_at_once(daemon: Daemon, client: HttpClient) -> None:
    made = client.call("keys.create", body=CreateKey(name="short-lived", role="admin"))
    with daemon.http(made["key"]) as holder:
        assert holder.get("/v1/sandboxes").status_code == 200
        client.call("keys.revoke", key="short-lived")
        assert holder.get("/v1/sandboxes").status_code == 401


def test_a_role_is_checked_before_the_request_is_read(daemon: Daemon, keys: dict[Role, str]) -> None:
    with daemon.http(keys[Role.REVIEWER]) as client:
        assert client.post("/v1/sandboxes", content=b"{ not json").status_code == 403


@pytest.mark.parametrize("role", [Role.AGENT, Role.USER])
def test_sandboxes_of_others_do_not_exist(daemon: Daemon, keys: dict[Role, str], sandbox: str, role: Role) -> None:
    with daemon.http(keys[role]) as holder:
        for path in ("", "/files/list?path=/", "/files?path=/notes.txt", "/changes"):
            reply = holder.get(f"/v1/sandboxes/{sandbox}{path}")
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), path
        assert holder.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "true"}).status_code == 404
        assert holder.delete(f"/v1/sandboxes/{sandbox}").status_code == 404
        assert sandbox not in [item["id"] for item in holder.get("/v1/sandboxes").json()["items"]]


def test_a_user_is_lent_no_directory(daemon: Daemon, keys: dict[Role, str], workspace: Path) -> None:
    with daemon.http(keys[Role.USER]) as holder:
        reply = holder.post("/v1/sandboxes", json={"workspace": str(workspace)})
    assert (reply.status_code, reply.json()["code"]) == (403, "denied")


def test_secrets_are_for_their_owner_only(daemon: Daemon) -> None:
    for name in ("admin-token", "socket", "daemon.json"):
        mode = stat.S_IMODE((daemon.state_directory / name).stat().st_mode)
        assert mode == 0o600, name


def test_the_socket_needs_no_token(daemon: Daemon) -> None:
    local = daemon.local()
    assert local.call("keys.list")["items"] is not None
    local.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7788", "127.0.0.1.evil.example", "[::ffff:8.8.8.8]", ""]
)
def test_a_page_that_rebound_its_name_is_refused(daemon: Daemon, host: str) -> None:
    with daemon.http() as client:
        for path in ("/v1/sandboxes", "/healthz", "/ui", "/openapi.json", "/metrics"):
            reply = client.get(path, headers={"host": host})
            assert (reply.status_code, reply.json()["code"]) == (403, "denied"), path


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]:7788", "127.1.2.3"])
def test_local_names_are_served(daemon: Daemon, host: str) -> None:
    with daemon.anonymous() as client:
        assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_no_other_site_may_read_replies(daemon: Daemon) -> None:
    with daemon.http() as client:
        reply = client.get("/v1/sandboxes", headers={"origin": "https://evil.example"})
        assert not [name for name in reply.headers if name.startswith("access-control-")]
        assert client.options("/v1/sandboxes").status_code == 405


def test_replies_carry_what_browsers_should_heed(daemon: Daemon) -> None:
    with daemon.anonymous() as client:
        page = client.get("/ui")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY"
        for path in ("/ui", "/healthz", "/nowhere"):
            assert client.get(path).headers["x-content-type-options"] == "nosniff"
        assert client.get("/healthz").headers["cache-control"] == "no-store"
