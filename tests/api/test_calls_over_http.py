"""What HTTP adds to the operations: keys against doubling, pages, HEAD, bytes in addresses, many callers at once."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.daemons import Daemon


def test_a_repeated_create_gives_the_same_sandbox(http: httpx.Client, workspace: Path) -> None:
    body = {"workspace": str(workspace)}
    headers = {"idempotency-key": "a-key-of-mine"}
    first = http.post("/v1/sandboxes", json=body, headers=headers)
    again = http.post("/v1/sandboxes", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    other = http.post("/v1/sandboxes", json={**body, "name": "other"}, headers=headers)
    assert other.status_code == 409
    assert http.delete(f"/v1/sandboxes/{first.json()['id']}").json() == {"id": first.json()["id"], "deleted": True}


def test_lists_are_paged(http: httpx.Client, sandbox: str) -> None:
    made = [http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": f"echo {n} > f"}).json() for n in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = http.get(f"/v1/sandboxes/{sandbox}/changesets", params=query).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [item["id"] for item in reversed(made)]
    assert "changes" not in page["items"][0]
    assert page["items"][0]["counts"]["added"] == 1


def test_head_is_get_without_a_body(http: httpx.Client, sandbox: str, workspace: Path) -> None:
    size = (workspace / "notes.txt").stat().st_size
    reply = http.head(f"/v1/sandboxes/{sandbox}/files", params={"path": "/notes.txt"})
    assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, str(size), b"")
    assert http.head("/healthz").status_code == 200


def test_a_file_is_offered_as_one(http: httpx.Client, sandbox: str, workspace: Path) -> None:
    (workspace / "page.html").write_text("<script>alert(1)</script>")
    (workspace / "page.html").chmod(0o640)
    reply = http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "/page.html"})
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
    assert reply.headers["x-flux-mode"] == "0640"


def test_names_in_addresses_are_bytes(http: httpx.Client, sandbox: str) -> None:
    body = {"command": "mkdir -p 'a b'; printf x > \"a b/$(printf '\\377\\n?#')\""}
    made = http.post(f"/v1/sandboxes/{sandbox}/speculate", json=body).json()
    address = f"/v1/sandboxes/{sandbox}/changesets/{made['id']}/files/a%20b/%FF%0A%3F%23"
    assert http.get(address).content == b"x"
    (entry,) = [entry for entry in made["changes"]["added"] if "path_base64" in entry]
    exact = base64.b64decode(entry["path_base64"])
    assert exact == b"/a b/\xff\n?#"
    only = ["base64:" + entry["path_base64"]]
    approved = http.post(f"/v1/sandboxes/{sandbox}/changesets/{made['id']}/approve", json={"only": only})
    assert approved.status_code == 200, approved.text
    assert approved.json()["counts"]["added"] == 2


def test_a_body_may_be_left_out(http: httpx.Client, sandbox: str) -> None:
    made = http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": "echo x > y"}).json()
    place = f"/v1/sandboxes/{sandbox}/changesets/{made['id']}"
    assert http.post(f"{place}/approve").json()["state"] == "approved"
    assert http.post(f"{place}/approve", content=b"").status_code == 409
    assert http.post(f"{place}/apply").json()["state"] == "applied"


@pytest.mark.parametrize("form", ["patch", "tar"])
def test_a_changeset_is_exported(http: httpx.Client, sandbox: str, form: str) -> None:
    made = http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": "echo more >> notes.txt"}).json()
    reply = http.get(f"/v1/sandboxes/{sandbox}/changesets/{made['id']}/export", params={"format": form})
    assert reply.status_code == 200
    assert f"{made['id']}.{form}" in reply.headers["content-disposition"]
    assert b"notes.txt" in reply.content


def test_many_callers_at_once(daemon: Daemon, sandbox: str) -> None:
    def call(number: int) -> tuple[int, str]:
        with daemon.http() as client:
            reply = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": f"sleep 0.2; echo {number}"})
        return reply.status_code, reply.json()["stdout"]

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(call, range(40))) == [(200, f"{number}\n") for number in range(40)]


def test_a_second_decision_at_once_is_refused(daemon: Daemon, http: httpx.Client, sandbox: str) -> None:
    made = http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": "echo x > y"}).json()
    place = f"/v1/sandboxes/{sandbox}/changesets/{made['id']}/approve"

    def approve(_: int) -> int:
        with daemon.http() as client:
            return client.post(place, json={"digest": made["digest"]}).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(approve, range(8))) == [200] + [409] * 7
    events = http.get("/v1/audit", params={"changeset": made["id"], "event": "changeset.approved"}).json()["items"]
    assert len(events) == 1
