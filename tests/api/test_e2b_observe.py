"""What E2B's clients see of a sandbox from outside: metrics and log, and only the owner's (spec: e2b, E9, E10)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from flux.api.http import HttpClient
from flux.core.access import Role
from flux.core.requests import Exec
from tests.api.daemons import SECONDS_MAX, Daemon

METRIC = {
    "timestamp",
    "timestampUnix",
    "cpuCount",
    "cpuUsedPct",
    "memUsed",
    "memTotal",
    "memCache",
    "diskUsed",
    "diskTotal",
}


@pytest.fixture
def e2b(daemon: Daemon) -> httpx.Client:
    return httpx.Client(base_url=daemon.url, headers={"x-api-key": daemon.token}, timeout=SECONDS_MAX)


def until(found: Callable[[], Any]) -> Any:
    """Ask again until there is something."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (answer := found()):
        assert time.monotonic() < deadline
    return answer


def test_metrics_of_one_and_of_several(e2b: httpx.Client, client: HttpClient, sandbox: str) -> None:
    client.call("sandbox.exec", sandbox=sandbox, body=Exec(command="true"))
    items = until(lambda: e2b.get(f"/sandboxes/{sandbox}/metrics").json())
    assert {frozenset(item) for item in items} == {frozenset(METRIC)}
    first = items[0]
    assert 0 <= first["cpuUsedPct"] <= 100
    assert first["memTotal"] >= first["memUsed"] >= 0
    assert first["diskTotal"] >= first["diskUsed"] > 0

    after = {"start": str(first["timestampUnix"] + 1000), "end": str(first["timestampUnix"] + 2000)}
    assert e2b.get(f"/sandboxes/{sandbox}/metrics", params=after).json() == []
    several = e2b.get("/sandboxes/metrics", params={"sandbox_ids": f"{sandbox},sbnone"}).json()["sandboxes"]
    assert list(several) == [sandbox]
    own = client.call("sandbox.metrics", sandbox=sandbox, query={"start": None, "end": None})
    assert own["sandbox_id"] == sandbox
    assert own["items"][0]["at"] == first["timestamp"]


@pytest.mark.parametrize("query", ["", "?sandbox_ids=", "?sandbox_ids=" + ",".join(["a"] * 101)])
def test_who_names_no_sandbox_or_too_many_is_refused(e2b: httpx.Client, query: str) -> None:
    assert e2b.get(f"/sandboxes/metrics{query}").status_code == 400


def test_the_log_tells_what_was_done_and_is_paged_by_time(e2b: httpx.Client, client: HttpClient, sandbox: str) -> None:
    client.call("sandbox.exec", sandbox=sandbox, body=Exec(command="echo first"))
    client.call("sandbox.exec", sandbox=sandbox, body=Exec(command="echo second"))
    place = f"/v2/sandboxes/{sandbox}/logs"
    entries = e2b.get(place).json()["logs"]
    assert [entry["fields"]["event"] for entry in entries] == ["sandbox.create", "sandbox.exec", "sandbox.exec"]
    assert {entry["level"] for entry in entries} == {"info"}
    assert [entry["message"] for entry in entries[1:]] == [
        "sandbox.exec by admin: echo first",
        "sandbox.exec by admin: echo second",
    ]
    assert e2b.get(place, params={"direction": "backward"}).json()["logs"] == entries[::-1]
    assert e2b.get(place, params={"limit": "1", "direction": "backward"}).json()["logs"] == entries[-1:]
    assert e2b.get(place, params={"search": "first"}).json()["logs"] == entries[1:2]
    assert e2b.get(place, params={"level": "warn"}).json()["logs"] == []
    assert e2b.get(place, params={"cursor": "99999999999999"}).json()["logs"] == []
    old = e2b.get(f"/sandboxes/{sandbox}/logs").json()
    assert old["logEntries"] == entries
    assert [line["line"] for line in old["logs"]] == [entry["message"] for entry in entries]


@pytest.mark.parametrize("query", ["limit=x", "cursor=-1", "direction=up", "level=loud"])
def test_a_query_that_cannot_be_read_is_named(e2b: httpx.Client, sandbox: str, query: str) -> None:
    reply = e2b.get(f"/v2/sandboxes/{sandbox}/logs?{query}")
    assert (reply.status_code, reply.json()["message"].split(":")[0]) == (400, f"cannot read {query.split('=')[0]}")


@pytest.mark.parametrize("path", ["/sandboxes/{}/metrics", "/sandboxes/{}/logs", "/v2/sandboxes/{}/logs"])
def test_another_users_sandbox_is_none(daemon: Daemon, keys: dict[Role, str], sandbox: str, path: str) -> None:
    with httpx.Client(base_url=daemon.url, headers={"x-api-key": keys[Role.USER]}, timeout=SECONDS_MAX) as stranger:
        assert stranger.get(path.format(sandbox)).status_code == 404
        assert stranger.get("/sandboxes/metrics", params={"sandbox_ids": sandbox}).json() == {"sandboxes": {}}
