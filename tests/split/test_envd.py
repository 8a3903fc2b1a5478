"""The data plane of a sandbox on another node: forwarded both ways, for nobody but who holds the sandbox's token."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.api.envd import STREAM, Ended, Envd, collect, frame, said, selected, start
from tests.split.conftest import Split

MIB = 1024 * 1024


@pytest.fixture
def envd(split: Split) -> Iterator[Envd]:
    one = Envd(split.control.url, split.control.token, envVars={"FROM": "create"})
    yield one
    one.close()


def test_processes_of_a_node(envd: Envd) -> None:
    assert envd.http.get("/health").status_code == 204
    headers = {"authorization": "Basic " + base64.b64encode(b"root:").decode()}
    with envd.stream("Start", start("echo $USER $FROM; exit 3"), **headers) as happened:
        assert next(happened)["start"]["pid"] > 0
        stdout, _, end = collect(happened)
    assert (stdout, end["exitCode"]) == (b"root create\n", 3)
    assert envd.http.get("/envs").json() == {"FROM": "create"}
    assert envd.http.get("/metrics").json()["mem_used"] > 0
    assert envd.http.get("/nothing").status_code == 404


def test_metrics_of_a_node_until_after_the_calendar(envd: Envd) -> None:
    reply = envd.control("GET", f"/metrics?start=0&end={'9' * 15}")
    assert (reply.status_code, type(reply.json())) == (200, list)


def test_a_caller_comes_and_goes(envd: Envd) -> None:
    """The process is told of nobody's hang-up, and its output comes as it is written."""
    with envd.stream("Start", start("read a; echo $a; read a; echo $a", stdin=True)) as happened:
        pid = next(happened)["start"]["pid"]
        envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"one\n").decode()}})
        assert said(next(happened)) == b"one\n"
    assert envd.pids() == [pid]
    with envd.stream("Connect", selected(pid)) as happened:
        next(happened)
        envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"two\n").decode()}})
        assert collect(happened)[0] == b"two\n"
    with pytest.raises(Ended) as caught:
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGKILL"})
    assert caught.value.code == "not_found"


def test_16_mib_pass_both_ways(envd: Envd) -> None:
    piece = bytes(range(256)) * (MIB // 256)
    encoded = frame(json.dumps({"data": {"input": {"stdin": base64.b64encode(piece).decode()}}}).encode())

    def feed(pid: int) -> int:
        def content() -> Iterator[bytes]:
            yield frame(json.dumps({"start": selected(pid)}).encode())
            for _ in range(16):
                yield encoded

        reply = envd.http.post("/process.Process/StreamInput", content=content(), headers=STREAM)
        envd.call("CloseStdin", selected(pid))
        return reply.status_code

    digest = hashlib.sha256()
    with ThreadPoolExecutor() as pool, envd.stream("Start", start("cat", stdin=True)) as happened:
        fed = pool.submit(feed, next(happened)["start"]["pid"])
        for event in happened:
            digest.update(said(event))
        assert fed.result() == 200
    assert digest.digest() == hashlib.sha256(piece * 16).digest()


def test_deadlines_and_keepalives_are_the_caller_s(envd: Envd) -> None:
    headers = {"connect_timeout_ms": "1500", "keepalive_ping_interval": "1"}
    with envd.stream("Start", start("sleep 600"), **headers) as happened:
        next(happened)
        assert next(happened) == {"keepalive": {}}
        with pytest.raises(Ended) as caught:
            list(happened)
    assert caught.value.code == "deadline_exceeded"


def test_a_pause_ends_streams_on_the_node(envd: Envd) -> None:
    with ThreadPoolExecutor() as pool, envd.stream("Start", start("sleep 600")) as happened:
        next(happened)
        paused = pool.submit(envd.control, "POST", "/pause", json={})
        with pytest.raises(Ended) as caught:
            list(happened)
        assert caught.value.code == "unavailable"
        assert paused.result().status_code == 204
    assert envd.http.get("/health").status_code == 502
    assert envd.http.get("/envs").json()["message"] == "The sandbox was not found"


def test_use_wakes_a_sandbox_that_is_to_be_woken(split: Split) -> None:
    envd = Envd(split.control.url, split.control.token, autoPause=True, autoResume={"enabled": True})
    try:
        assert envd.run("echo kept > ~/file")[2]["exited"]
        assert envd.control("POST", "/pause", json={}).status_code == 204
        assert envd.http.get("/health").status_code == 502
        assert envd.run("cat ~/file")[0] == b"kept\n"
        assert envd.http.get("/health").status_code == 204
    finally:
        envd.close()


def test_a_node_serves_nobody_directly(split: Split, envd: Envd) -> None:
    actor = json.dumps({"name": "x", "role": "user", "sandbox_id": envd.id})
    for node in split.nodes.values():
        for headers in (
            envd.headers,
            {"authorization": f"Bearer {split.control.token}"},
            {"authorization": f"Flux-Route {envd.id}.1.{'0' * 64}", "flux-actor": actor},
        ):
            for path in ("/health", "/envs", f"/v1/sandboxes/{envd.id}.1/envd/envs"):
                reply = httpx.get(node.url + path, headers=headers)
                assert reply.status_code in (401, 403, 404, 502), (path, reply.text)
                assert "FROM" not in reply.text
