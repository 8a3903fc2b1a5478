"""What a control plane forwards to the node that has the route: streams both ways, and nobody else's requests."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from flux.core.errors import Code, FluxError
from flux.core.requests import Approve, CreateSandbox, Exec, Pause, Speculate
from tests.split.conftest import Split

MIB = 1024 * 1024


def test_commands_files_and_changesets_of_a_node(split: Split, sandbox: str) -> None:
    client = split.client()
    ended = client.call("sandbox.exec", body=Exec(command="cat; exit 3", stdin="in"), sandbox=sandbox)
    assert (ended["stdout"], ended["exit_code"]) == ("in", 3)
    client.write_file(sandbox, "/root/a b\udcff", io.BytesIO(b"data"), 0o600)
    target = io.BytesIO()
    assert client.read_file(sandbox, "/root/a b\udcff", target) == 4
    made = client.call("sandbox.speculate", body=Speculate(command="echo new > /root/made"), sandbox=sandbox)
    names = {"sandbox": sandbox, "changeset": made["id"]}
    client.call("changeset.approve", body=Approve(digest=made["digest"]), **names)
    assert client.call("changeset.apply", **names)["state"] == "applied"
    assert client.call("sandbox.exec", body=Exec(command="cat /root/made"), sandbox=sandbox)["stdout"] == "new\n"


def test_a_node_s_refusal_arrives_as_it_is(split: Split, sandbox: str) -> None:
    with split.control.http() as http:
        reply = http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "/none"})
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert len(reply.headers.get_list("x-request-id")) == 1


def test_32_mib_pass_both_ways(split: Split, sandbox: str, tmp_path: Path) -> None:
    client = split.client()
    content = os.urandom(MIB) * 32
    client.write_file(sandbox, "/root/large", io.BytesIO(content))
    target = io.BytesIO()
    client.read_file(sandbox, "/root/large", target)
    assert hashlib.sha256(target.getvalue()).digest() == hashlib.sha256(content).digest()
    source, result = tmp_path / "in", tmp_path / "out"
    source.write_bytes(content)
    with source.open("rb") as stdin, result.open("wb") as stdout:
        ended = client.run(sandbox, Exec(argv=["cat"]), stdin=stdin.fileno(), stdout=stdout.fileno(), stderr=2)
    assert ended.exit_code == 0
    assert hashlib.sha256(result.read_bytes()).digest() == hashlib.sha256(content).digest()


def test_output_comes_as_it_is_written(split: Split, sandbox: str) -> None:
    """The command ends only when it is told what it wrote first."""
    client = split.client()
    client.call("sandbox.exec", body=Exec(command="mkfifo /root/go"), sandbox=sandbox)
    body = {"command": "echo first; read line < /root/go; echo $line", "stream": True}
    events = []
    with split.control.http() as http, http.stream("POST", f"/v1/sandboxes/{sandbox}/exec", json=body) as reply:
        for line in reply.iter_lines():
            events.append(json.loads(line))
            if events[-1]["event"] == "stdout" and len(events) == 2:
                client.call("sandbox.exec", body=Exec(command="echo second > /root/go"), sandbox=sandbox)
    assert [event["event"] for event in events] == ["start", "stdout", "stdout", "exit"]


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_kills_the_command(split: Split, sandbox: str, stream: bool) -> None:
    split.client().call("sandbox.exec", body=Exec(command="mkfifo /root/end"), sandbox=sandbox)
    command = "exec 9> /root/end; echo begun >&9; sleep 1000 & wait"
    body = json.dumps({"command": command, "stream": stream}).encode()
    place = urlsplit(split.control.url)
    watch = {"command": "cat /root/end", "stream": True, "timeout_seconds": 30}
    with socket.create_connection((place.hostname, place.port)) as caller:
        caller.sendall(
            f"POST /v1/sandboxes/{sandbox}/exec HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {split.control.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        with split.control.http() as http, http.stream("POST", f"/v1/sandboxes/{sandbox}/exec", json=watch) as reply:
            lines = reply.iter_lines()
            assert [json.loads(next(lines))["event"] for _ in range(2)] == ["start", "stdout"]
            caller.close()
            # The end of the pipe is the end of the last process that held it.
            last = json.loads(next(lines))
    assert (last["event"], last["exit_code"], last["timed_out"]) == ("exit", 0, False)


def test_a_terminal_on_a_node(split: Split, sandbox: str) -> None:
    url = f"ws{split.control.url.removeprefix('http')}/v1/sandboxes/{sandbox}/pty"
    opening = {"exec": {"command": "stty size; read line; echo got $line"}, "terminal": {"rows": 7, "columns": 70}}
    with connect(url, additional_headers={"Authorization": f"Bearer {split.control.token}"}, proxy=None) as terminal:
        terminal.send(json.dumps(opening))
        shown = b""
        while b"7 70" not in shown:
            message = terminal.recv(30)
            shown += message[1:] if isinstance(message, bytes) else b""
        terminal.send(b"hello\n")
        told = [terminal.recv(30)]
        while not (isinstance(told[-1], str) and json.loads(told[-1])["event"] == "exit"):
            told.append(terminal.recv(30))
    assert b"got hello" in b"".join(part[1:] for part in told if isinstance(part, bytes))
    assert json.loads(told[-1])["exit_code"] == 0


def test_a_paused_sandbox_is_refused_and_goes_on_when_resumed(split: Split, sandbox: str) -> None:
    client = split.client()
    client.write_file(sandbox, "/root/kept", io.BytesIO(b"kept"))
    before = client.call("sandbox.pause", body=Pause(durable=True), sandbox=sandbox)
    with pytest.raises(FluxError) as caught:
        client.call("sandbox.exec", body=Exec(command="true"), sandbox=sandbox)
    assert caught.value.code is Code.ILLEGAL_STATE
    assert "resume it first" in caught.value.message
    after = client.call("sandbox.resume", sandbox=sandbox)
    assert (after["woke_from"], after["artifact_id"]) == ("artifact", before["artifact_id"])
    target = io.BytesIO()
    client.read_file(sandbox, "/root/kept", target)
    assert target.getvalue() == b"kept"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer {admin}", 401),
        ("Flux-Route", 401),
        ("Flux-Route {id}.1", 401),
        ("Flux-Route {id}.x.secret", 401),
        ("Flux-Route {id}.1.secret", 403),
        ("Flux-Route other.1.secret", 403),
        ("Flux-Route {id}.99.secret", 403),
    ],
)
def test_a_node_serves_nobody_but_its_control_plane(
    split: Split, sandbox: str, authorization: str | None, status: int
) -> None:
    node = split.nodes[split.client().call("sandbox.get", sandbox=sandbox)["node"]]
    headers = {"flux-actor": json.dumps({"name": "x", "role": "admin"})}
    if authorization is not None:
        headers["authorization"] = authorization.format(admin=node.token, id=sandbox)
    with node.anonymous(headers=headers) as http:
        assert http.get(f"/v1/sandboxes/{sandbox}.1/files", params={"path": "/"}).status_code == status
        assert http.get("/v1/sandboxes").status_code == 404
        assert http.get("/healthz").status_code == 200


def test_a_generation_that_is_not_the_one_that_runs_is_fenced(split: Split, sandbox: str) -> None:
    node = split.nodes[split.client().call("sandbox.get", sandbox=sandbox)["node"]]
    headers = {"authorization": f"Flux-Route {sandbox}.9.secret", "flux-actor": '{"name":"x","role":"admin"}'}
    with node.anonymous(headers=headers) as http:
        reply = http.get(f"/v1/sandboxes/{sandbox}.9/files", params={"path": "/"})
    assert (reply.status_code, reply.json()["code"]) == (409, "fenced")
    assert reply.json()["details"]["reason"] == "StaleGeneration"


def test_a_directory_of_one_machine_is_refused_where_none_runs(split: Split, tmp_path: Path) -> None:
    with pytest.raises(FluxError) as caught:
        split.client().call("sandbox.create", body=CreateSandbox(workspace=str(tmp_path)))
    assert caught.value.code is Code.NOT_APPLICABLE
