"""E2B's control plane over raw HTTP: every route, its status, shape and whether to repeat it (spec: e2b, §1–§3, §5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from flux.core.access import Role
from tests.api.daemons import SECONDS_MAX, Daemon

pytestmark = pytest.mark.root  # the template base

JSON = {"content-type": "application/json"}


def caller(daemon: Daemon, key: str) -> httpx.Client:
    return httpx.Client(base_url=daemon.url, headers={"x-api-key": key}, timeout=SECONDS_MAX)


@pytest.fixture
def e2b(daemon: Daemon, keys: dict[Role, str]) -> Iterator[httpx.Client]:
    """A user, by its key."""
    with caller(daemon, keys[Role.USER]) as client:
        yield client


@pytest.fixture
def made(e2b: httpx.Client) -> Iterator[dict[str, Any]]:
    """A sandbox of that user."""
    reply = e2b.post("/v2/sandboxes", json={"templateID": "base", "metadata": {"a b": "c&d"}, "envVars": {"X": "1"}})
    assert reply.status_code == 201, reply.text
    found: dict[str, Any] = reply.json()
    yield found
    e2b.delete(f"/sandboxes/{found['sandboxID']}")


def told(reply: httpx.Response, status: int, error_code: str | None = None, *, retry: bool = False) -> str:
    """Check an error's shape and return its message."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body.keys() - {"error_code"} == {"code", "message"}
    assert (body["code"], body.get("error_code")) == (status, error_code)
    assert reply.headers["should-retry"] == ("true" if retry else "false")
    message: str = body["message"]
    assert message.startswith("cannot ")
    return message


def seconds_left(e2b: httpx.Client, sandbox: str) -> float:
    end = datetime.fromisoformat(e2b.get(f"/sandboxes/{sandbox}").json()["endAt"])
    return (end - datetime.now(UTC)).total_seconds()


# Create and look


def test_what_is_told_of_a_new_sandbox(e2b: httpx.Client, made: dict[str, Any]) -> None:
    token = made.pop("envdAccessToken")
    assert len(token) == 48 and int(token, 16) >= 0
    sandbox = made["sandboxID"]
    assert sandbox.isalnum() and sandbox.islower()
    assert made == {
        "templateID": "base", "sandboxID": sandbox, "clientID": "flux", "envdVersion": "0.6.13",
        "trafficAccessToken": None, "domain": None, "alias": "base",
    }  # fmt: skip
    detail = e2b.get(f"/sandboxes/{sandbox}").json()
    assert detail["envdAccessToken"] == token
    assert {name: detail[name] for name in ("state", "metadata", "lifecycle", "volumeMounts", "network")} == {
        "state": "running", "metadata": {"a b": "c&d"}, "lifecycle": {"autoResume": False, "onTimeout": "kill"},
        "volumeMounts": [], "network": {},
    }  # fmt: skip
    assert all(isinstance(detail[name], int) and detail[name] > 0 for name in ("cpuCount", "memoryMB", "diskSizeMB"))
    started, end = datetime.fromisoformat(detail["startedAt"]), datetime.fromisoformat(detail["endAt"])
    assert (end - started).total_seconds() == 300
    assert "pauseMode" not in detail


def test_the_older_route_gives_fifteen_seconds(e2b: httpx.Client) -> None:
    reply = e2b.post("/sandboxes", json={"templateID": "base", "unknownField": {"x": 1}})
    assert reply.status_code == 201
    assert seconds_left(e2b, reply.json()["sandboxID"]) <= 15
    assert e2b.delete(f"/sandboxes/{reply.json()['sandboxID']}").status_code == 204


def test_a_life_cycle_is_kept(e2b: httpx.Client) -> None:
    asked = {
        "templateID": "base", "timeout": 50, "autoPause": True, "autoPauseMemory": True,
        "autoResume": {"enabled": True},
        "allow_internet_access": False, "secure": True, "mcp": None, "network": {}, "iam": {}, "volumeMounts": [],
    }  # fmt: skip
    sandbox = e2b.post("/v2/sandboxes", json=asked).json()["sandboxID"]
    detail = e2b.get(f"/sandboxes/{sandbox}").json()
    assert detail["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
    assert detail["allowInternetAccess"] is False
    assert e2b.delete(f"/sandboxes/{sandbox}").status_code == 204


@pytest.mark.parametrize(
    "more",
    [
        {"mcp": {"server": {}}},
        {"iam": {"tokens": {"a": {}}}},
        {"volumeMounts": [{"name": "v", "path": "/v"}]},
        {"secure": False},
        {"network": {"allowOut": ["1.1.1.1"]}},
        {"network": {"denyOut": ["10.0.0.0/8"]}},
        {"network": {"allowPublicTraffic": False}},
        {"network": {"rules": {"example.org": []}}},
        {"network": {"egressProxy": {"address": "x:1"}}},
    ],
)
def test_what_would_mean_something_else_is_refused(e2b: httpx.Client, more: dict[str, Any]) -> None:
    assert "not supported" in told(e2b.post("/v2/sandboxes", json={"templateID": "base", **more}), 501)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"{}",
        b'{"templateID": 5}',
        b'{"templateID": "base", "timeout": "5"}',
        b'{"templateID": "base", "timeout": -1}',
        b'{"templateID": "base", "timeout": 0}',
        b'{"templateID": "base", "metadata": {"a": 1}}',
        b'{"templateID": "base", "envVars": {"A=B": "1"}}',
        b'{"templateID": "a/b"}',
        b'{"templateID": "base", "mcp": ' + b"[" * 100_000,
        b'{"unknown": ' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_bad_requests(e2b: httpx.Client, body: bytes) -> None:
    told(e2b.post("/v2/sandboxes", content=body, headers=JSON), 400)


def test_a_template_that_is_not_there(e2b: httpx.Client) -> None:
    assert "'nosuch'" in told(e2b.post("/v2/sandboxes", json={"templateID": "nosuch"}), 404)


def test_a_body_that_is_too_large(e2b: httpx.Client) -> None:
    told(e2b.post("/v2/sandboxes", content=b" " * (2 << 20), headers=JSON), 413)


def test_an_idempotency_key_makes_one_sandbox(e2b: httpx.Client) -> None:
    headers, body = {"idempotency-key": "e2b-key-1"}, {"templateID": "base", "timeout": 60}
    replies: list[httpx.Response] = []

    def create() -> None:
        replies.append(e2b.post("/v2/sandboxes", json=body, headers=headers))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} == {201}
    [sandbox] = {reply.json()["sandboxID"] for reply in replies}
    other = e2b.post("/v2/sandboxes", json={**body, "timeout": 61}, headers=headers)
    told(other, 409, "idempotency_request_mismatch")
    assert e2b.delete(f"/sandboxes/{sandbox}").status_code == 204


# Who may


def test_who_calls(daemon: Daemon, keys: dict[Role, str]) -> None:
    routes = [
        ("POST", "/v2/sandboxes"), ("POST", "/sandboxes"), ("GET", "/v2/sandboxes"), ("GET", "/sandboxes"),
        ("GET", "/sandboxes/x"), ("DELETE", "/sandboxes/x"), ("POST", "/v2/sandboxes/x/connect"),
        ("POST", "/sandboxes/x/connect"), ("POST", "/sandboxes/x/pause"), ("POST", "/sandboxes/x/resume"),
        ("POST", "/sandboxes/x/timeout"), ("POST", "/sandboxes/x/refreshes"), ("POST", "/sandboxes/x/snapshots"),
        ("POST", "/sandboxes/x/fork"), ("PUT", "/sandboxes/x/network"), ("GET", "/snapshots"),
        ("DELETE", "/templates/x"), ("GET", "/templates/aliases/base"), ("GET", "/volumes"), ("POST", "/v3/templates"),
    ]  # fmt: skip
    with daemon.anonymous() as nobody, caller(daemon, "e2b_" + "0" * 40) as stranger:
        for method, path in routes:
            told(nobody.request(method, path, json={}), 401)
            told(stranger.request(method, path, json={}), 401)
    with daemon.http(keys[Role.USER]) as bearer, caller(daemon, keys[Role.REVIEWER]) as reviewer:
        assert bearer.get("/v2/sandboxes").status_code == 200
        told(reviewer.post("/v2/sandboxes", json={"templateID": "base"}), 403)
        assert reviewer.get("/v2/sandboxes").status_code == 200


def test_others_see_nothing(daemon: Daemon, keys: dict[Role, str], made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    with caller(daemon, keys[Role.AGENT]) as other:
        for method, place, body in (
            ("GET", path, None), ("DELETE", path, None), ("POST", "/v2" + path + "/connect", {}),
            ("POST", path + "/pause", {}), ("POST", path + "/resume", {}), ("POST", path + "/timeout", {"timeout": 0}),
            ("POST", path + "/refreshes", {"duration": 5}), ("POST", path + "/snapshots", {}),
            ("POST", path + "/fork", {}), ("PUT", path + "/network", {}),
        ):  # fmt: skip
            told(other.request(method, place, json=body), 404)
        assert made["sandboxID"] not in other.get("/v2/sandboxes").text
    with caller(daemon, keys[Role.REVIEWER]) as reviewer:
        seen = reviewer.get(path).json()
        assert seen["sandboxID"] == made["sandboxID"]
        assert "envdAccessToken" not in seen


# Its life


def test_pause_connect_resume(e2b: httpx.Client, made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    told(e2b.post(path + "/resume", json={}), 409, "sandbox_illegal_state")
    running = e2b.post("/v2" + path + "/connect", json={})
    assert (running.status_code, running.json()) == (200, made)
    assert e2b.post(path + "/pause", json={"memory": True}).status_code == 204
    told(e2b.post(path + "/pause"), 409, "sandbox_already_paused")
    detail = e2b.get(path).json()
    assert (detail["state"], detail["pauseMode"]) == ("paused", "filesystem")
    woken = e2b.post("/v2" + path + "/connect", json={"timeout": 400, "memory": False})
    assert (woken.status_code, woken.json()) == (201, made)
    assert 390 < seconds_left(e2b, made["sandboxID"]) <= 400
    assert e2b.post(path + "/connect", json={"timeout": 20}).status_code == 200
    assert seconds_left(e2b, made["sandboxID"]) > 390
    told(e2b.post(path + "/connect", json={}), 400)
    e2b.post(path + "/pause")
    told(e2b.post(path + "/resume", json={"autoPause": True}), 501)
    resumed = e2b.post(path + "/resume", json={"timeout": 30, "autoPause": False})
    assert (resumed.status_code, resumed.json()) == (201, made)


def test_many_connects_are_one_wake(e2b: httpx.Client, daemon: Daemon, made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    assert e2b.post(path + "/pause").status_code == 204
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(e2b.post("/v2" + path + "/connect", json={}).status_code))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) <= {200, 201} and 201 in codes
    assert daemon.client().call("sandbox.get", sandbox=made["sandboxID"])["generation"] == 2


def test_time_outs(e2b: httpx.Client, made: dict[str, Any]) -> None:
    path, sandbox = f"/sandboxes/{made['sandboxID']}", made["sandboxID"]
    assert e2b.post(path + "/timeout", json={"timeout": 1000}).status_code == 204
    assert 990 < seconds_left(e2b, sandbox) <= 1000
    assert e2b.post(path + "/timeout", json={"timeout": 100}).status_code == 204
    assert 90 < seconds_left(e2b, sandbox) <= 100
    assert e2b.post(path + "/refreshes", json={"duration": 50}).status_code == 204
    assert 90 < seconds_left(e2b, sandbox) <= 100
    assert e2b.post(path + "/refreshes", json={"duration": 500}).status_code == 204
    assert 490 < seconds_left(e2b, sandbox) <= 500
    assert e2b.post(path + "/refreshes").status_code == 204
    told(e2b.post(path + "/timeout", json={}), 400)
    assert e2b.post(path + "/timeout", json={"timeout": -3}).status_code == 204
    told(e2b.get(path), 404)
    told(e2b.delete(path), 404)


def test_no_time_left_pauses_what_is_to_be_paused(e2b: httpx.Client) -> None:
    sandbox = e2b.post("/v2/sandboxes", json={"templateID": "base", "autoPause": True}).json()["sandboxID"]
    for _ in range(2):  # the second time there is nothing to end
        assert e2b.post(f"/sandboxes/{sandbox}/timeout", json={"timeout": 0}).status_code == 204
        assert e2b.get(f"/sandboxes/{sandbox}").json()["state"] == "paused"
    assert e2b.delete(f"/sandboxes/{sandbox}").status_code == 204


def test_what_is_done_is_recorded(e2b: httpx.Client, daemon: Daemon, made: dict[str, Any]) -> None:
    sandbox = made["sandboxID"]
    e2b.post(f"/sandboxes/{sandbox}/pause")
    e2b.post(f"/v2/sandboxes/{sandbox}/connect", json={})
    e2b.delete(f"/sandboxes/{sandbox}")
    lines = daemon.client().call("audit.list", query={"sandbox_id": sandbox})["items"]
    assert [line["event"] for line in lines] == ["sandbox.create", "sandbox.pause", "sandbox.resume", "sandbox.delete"]
    assert {line["role"] for line in lines} == {"user"}


# Lists


def test_lists_in_pages(e2b: httpx.Client) -> None:
    mark = {"mark/ü": "x y&z=%"}
    bodies = [{"templateID": "base", "metadata": {**mark, "n": str(number)}} for number in range(3)]
    ids = [e2b.post("/v2/sandboxes", json=body).json()["sandboxID"] for body in bodies]
    e2b.post(f"/sandboxes/{ids[1]}/pause")
    quoted = urlencode({quote(name): quote(value) for name, value in mark.items()})

    def page(**query: Any) -> httpx.Response:
        reply = e2b.get("/v2/sandboxes", params={"metadata": quoted, **query})
        assert reply.status_code == 200, reply.text
        return reply

    def names(reply: httpx.Response) -> list[str]:
        return [one["sandboxID"] for one in reply.json()]

    assert names(page()) == ids[::-1]
    first = page(limit=2, order="asc")
    assert names(first) == ids[:2]
    last = page(limit=2, order="asc", nextToken=first.headers["x-next-token"])
    assert (names(last), "x-next-token" in last.headers) == (ids[2:], False)
    assert names(page(state="paused")) == [ids[1]]
    assert names(page(state="running,paused")) == ids[::-1]
    assert names(page(state=["running", "paused"])) == ids[::-1]
    assert names(page(template="base", startedAfter="2020-01-01T00:00:00Z")) == ids[::-1]
    assert names(page(startedAfter="2999-01-01T00:00:00+00:00")) == []
    assert names(page(template="other")) == []
    assert names(e2b.get("/sandboxes", params={"metadata": quoted})) == [ids[2], ids[0]]
    assert "envdAccessToken" not in page().json()[0]
    for sandbox in ids:
        assert e2b.delete(f"/sandboxes/{sandbox}").status_code == 204


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=100000",
        "limit=0000000001999",
        f"limit=000000001{'9' * 5000}",
        "state=gone",
        "order=up",
        "startedAfter=then",
        "nextToken=x",
        "metadata=x",
    ],
)
def test_bad_lists(e2b: httpx.Client, query: str) -> None:
    told(e2b.get(f"/v2/sandboxes?{query}"), 400)


# Snapshots, forks, network, templates


def test_snapshots(e2b: httpx.Client, made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    plain = e2b.post(path + "/snapshots", json={}).json()
    reply = e2b.post(path + "/snapshots", json={"name": "e2b-named", "memory": True})
    assert (reply.status_code, plain["names"], reply.json()["names"]) == (201, [], ["e2b-named"])
    taken = reply.json()["snapshotID"]
    told(e2b.post(path + "/snapshots", json={"name": "a/b"}), 400)
    query = {"sandboxID": made["sandboxID"]}
    first = e2b.get("/snapshots", params={**query, "limit": 1})
    assert first.json() == [reply.json()]
    rest = e2b.get("/snapshots", params={**query, "limit": 1, "nextToken": first.headers["x-next-token"]})
    assert (rest.json(), "x-next-token" in rest.headers) == ([plain], False)
    assert e2b.get("/snapshots", params={"name": "e2b-named"}).json() == [reply.json()]
    assert e2b.get("/snapshots", params={"sandboxID": "none"}).json() == []
    told(e2b.get("/snapshots?nextToken=x"), 400)
    started = e2b.post("/v2/sandboxes", json={"templateID": "e2b-named", "envVars": {"Y": "2"}}).json()
    assert (started["templateID"], started["alias"]) == (taken, "base")
    assert started["envdAccessToken"] != made["envdAccessToken"]
    assert e2b.get("/templates/aliases/e2b-named").json() == {"templateID": taken, "public": False}
    e2b.delete(path)
    assert len(e2b.get("/snapshots", params=query).json()) == 2
    for snapshot in (taken, plain["snapshotID"]):
        assert e2b.delete(f"/templates/{snapshot}").status_code == 204
        told(e2b.delete(f"/templates/{snapshot}"), 404)
    told(e2b.post("/v2/sandboxes", json={"templateID": taken}), 404)
    assert e2b.get(f"/sandboxes/{started['sandboxID']}").json()["state"] == "running"
    assert e2b.delete(f"/sandboxes/{started['sandboxID']}").status_code == 204
    told(e2b.delete("/templates/" + quote("team/name:tag", safe="")), 404)


def test_forks(e2b: httpx.Client, made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    reply = e2b.post(path + "/fork", json={"count": 2, "timeout": 77})
    assert reply.status_code == 201
    forks = [one["sandbox"] for one in reply.json()]
    assert len({made["sandboxID"], *(fork["sandboxID"] for fork in forks)}) == 3
    for fork in forks:
        assert 70 < seconds_left(e2b, fork["sandboxID"]) <= 77
        assert e2b.delete(f"/sandboxes/{fork['sandboxID']}").status_code == 204
    for count in (0, 21):
        told(e2b.post(path + "/fork", json={"count": count}), 400)
    told(e2b.post("/sandboxes/none/fork", json={}), 404)
    assert e2b.get("/snapshots", params={"sandboxID": made["sandboxID"]}).json() == []


def test_networks(e2b: httpx.Client, made: dict[str, Any]) -> None:
    path = f"/sandboxes/{made['sandboxID']}"
    has = e2b.get(path).json()["allowInternetAccess"]
    assert e2b.put(path + "/network", json={}).status_code == 204
    assert e2b.put(path + "/network", json={"allow_internet_access": has}).status_code == 204
    told(e2b.put(path + "/network", json={"allow_internet_access": not has}), 501)
    told(e2b.put(path + "/network", json={"allowOut": ["1.1.1.1"]}), 501)


def test_what_is_not_there_says_so(e2b: httpx.Client) -> None:
    assert e2b.get("/templates/aliases/base").json() == {"templateID": "base", "public": True}
    told(e2b.get("/templates/aliases/nosuch"), 404)
    for method, path in (
        ("POST", "/v3/templates"), ("GET", "/templates"), ("POST", "/v2/templates/x/builds/y"), ("GET", "/templates/x"),
        ("GET", "/templates/x/files/abc"), ("DELETE", "/templates/tags"), ("GET", "/volumes"), ("POST", "/volumes"),
        ("GET", "/secrets/x"), ("GET", "/teams"), ("POST", "/api-keys"),
    ):  # fmt: skip
        told(e2b.request(method, path), 501)
    for path in ("/sandboxes/x/nosuch", "/v2/nosuch", "/v3/nosuch", "/snapshots/x"):
        told(e2b.get(path), 404)


def test_wrong_methods(e2b: httpx.Client) -> None:
    for method, path, allowed in (
        ("PUT", "/v2/sandboxes", "GET, POST"), ("PATCH", "/sandboxes/x", "DELETE, GET"), ("POST", "/snapshots", "GET"),
    ):  # fmt: skip
        reply = e2b.request(method, path)
        told(reply, 405)
        assert reply.headers["allow"] == allowed
