"""Long streams: exec as events and over the WebSocket, files both ways, hang-ups, long polls."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pty
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from flux.api.http import HttpClient
from flux.core.errors import Code, FluxError
from flux.core.requests import Decide, Exec, Speculate
from tests.api.daemons import Daemon

MIB = 1024 * 1024
LONG = 64 * MIB


class Pattern(io.RawIOBase):
    """Bytes that are no repetition of a short piece, without holding them."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._count = 0
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        size = min(self._left, MIB if size < 0 else size)
        block = hashlib.sha256(str(self._count).encode()).digest()
        data = (block * (size // len(block) + 1))[:size]
        self._count += 1
        self._left -= size
        self.digest.update(data)
        return data


class Digest(io.RawIOBase):
    """Takes bytes and keeps only their digest and number."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Take some bytes."""
        self.digest.update(data)
        self.size += len(data)
        return len(data)


def test_64_mib_pass_through_a_command(client: HttpClient, sandbox: str) -> None:
    source, target = Pattern(LONG), Digest()
    stdin, feed = os.pipe()
    drain, stdout = os.pipe()

    def send() -> None:
        with os.fdopen(feed, "wb") as stream:
            while data := source.read(MIB):
                stream.write(data)

    def receive() -> None:
        with os.fdopen(drain, "rb") as stream:
            while data := stream.read(MIB):
                target.write(data)

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    ended = client.run(sandbox, Exec(argv=["cat"]), stdin=stdin, stdout=stdout, stderr=2)
    os.close(stdout)
    os.close(stdin)
    for thread in threads:
        thread.join(60)
    assert ended.exit_code == 0
    assert target.size == LONG
    assert target.digest.digest() == source.digest.digest()


def test_a_command_that_writes_much_before_it_reads_keeps_nobody_waiting(client: HttpClient, sandbox: str) -> None:
    stdin, feed = os.pipe()
    drain, stdout = os.pipe()
    seen: list[int] = []

    def send() -> None:
        with os.fdopen(feed, "wb") as stream:
            for _ in range(LONG // MIB // 2):
                stream.write(bytes(MIB))

    def receive() -> None:
        with os.fdopen(drain, "rb") as stream:
            while data := stream.read(MIB):
                seen.append(len(data))

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    script = f"head -c {LONG // 2} /dev/zero; wc -c"
    ended = client.run(sandbox, Exec(command=script, timeout_seconds=60), stdin=stdin, stdout=stdout, stderr=2)
    os.close(stdout)
    os.close(stdin)
    for thread in threads:
        thread.join(60)
    assert (ended.exit_code, ended.timed_out) == (0, False)
    assert sum(seen) == LONG // 2 + len(f"{LONG // 2}\n")


def test_64_mib_of_a_file_both_ways(client: HttpClient, sandbox: str, workspace: Path) -> None:
    source, target = Pattern(LONG), Digest()
    reply = client.write_file(sandbox, "/big", source, 0o640)  # type: ignore[arg-type]
    assert (reply["path"], reply["size"]) == ("/big", LONG)
    assert (workspace / "big").stat().st_mode & 0o777 == 0o640
    assert client.read_file(sandbox, "/big", target) == LONG  # type: ignore[arg-type]
    assert target.digest.digest() == source.digest.digest()


def events(http: httpx.Client, sandbox: str, **body: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed command."""
    with http.stream("POST", f"/v1/sandboxes/{sandbox}/exec", json={"stream": True, **body}) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"] == "application/x-ndjson"
        for line in reply.iter_lines():
            yield json.loads(line)


def test_events_tell_the_whole_of_a_long_output(http: httpx.Client, sandbox: str) -> None:
    digest, size = hashlib.sha256(), 0
    command = f"head -c {LONG} /dev/zero | tr '\\0' x; echo end >&2; exit 7"
    kinds: list[str] = []
    errors = b""
    last: dict[str, Any] = {}
    for event in events(http, sandbox, command=command):
        kinds.append(event["event"])
        if event["event"] == "stdout":
            data = base64.b64decode(event["data"])
            digest.update(data)
            size += len(data)
        elif event["event"] == "stderr":
            errors += base64.b64decode(event["data"])
        last = event
    assert size == LONG
    assert digest.digest() == hashlib.sha256(b"x" * LONG).digest()
    assert errors == b"end\n"
    assert (kinds[0], kinds[-1]) == ("start", "exit")
    assert (last["exit_code"], last["signal"], last["timed_out"]) == (7, None, False)


def test_events_come_as_they_happen(http: httpx.Client, sandbox: str, workspace: Path) -> None:
    os.mkfifo(workspace / "gate")
    running = events(http, sandbox, command="echo ready; read line < gate; echo got $line")
    seen = [next(running), next(running)]
    assert base64.b64decode(seen[1]["data"]) == b"ready\n"
    (workspace / "gate").write_text("it\n")
    assert base64.b64decode(next(running)["data"]) == b"got it\n"
    assert next(running)["event"] == "exit"


def test_input_reaches_the_command(http: httpx.Client, sandbox: str) -> None:
    data = bytes(range(256)) * 4096
    body = {"command": "sha256sum", "stdin_base64": base64.b64encode(data).decode()}
    reply = http.post(f"/v1/sandboxes/{sandbox}/exec", json=body).json()
    assert reply["stdout"].split()[0] == hashlib.sha256(data).hexdigest()


def test_a_command_that_does_not_read_its_input_ends(http: httpx.Client, sandbox: str) -> None:
    reply = http.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "echo hi", "stdin": "x" * MIB}).json()
    assert (reply["stdout"], reply["exit_code"]) == ("hi\n", 0)


def test_a_time_out_is_told(http: httpx.Client, sandbox: str) -> None:
    reply = http.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "echo a; sleep 1000", "timeout_seconds": 0.3})
    assert reply.json()["timed_out"] is True
    assert reply.json()["stdout"] == "a\n"


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_kills_the_command(daemon: Daemon, sandbox: str, workspace: Path, stream: bool) -> None:
    os.mkfifo(workspace / "end")
    body = json.dumps({"command": "exec 9> end; sleep 1000 & wait", "stream": stream}).encode()
    place = urlsplit(daemon.url)
    with socket.create_connection((place.hostname, place.port)) as caller:
        caller.sendall(
            f"POST /v1/sandboxes/{sandbox}/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        end = (workspace / "end").open()
    # The end of the pipe is the end of the last process that held it.
    assert end.read() == ""
    end.close()


def web_socket(daemon: Daemon, sandbox: str, **headers: str) -> Any:
    """Return what opens a sandbox's WebSocket."""
    url = f"ws{daemon.url.removeprefix('http')}/v1/sandboxes/{sandbox}/pty"
    return connect(url, additional_headers={"Authorization": f"Bearer {daemon.token}", **headers}, proxy=None)


@contextmanager
def open_terminal(
    daemon: Daemon, sandbox: str, terminal: dict[str, int] | None, **request: Any
) -> Iterator[ClientConnection]:
    """Open the WebSocket and send the first message."""
    with web_socket(daemon, sandbox) as connection:
        connection.send(json.dumps({"exec": request, "terminal": terminal}))
        assert json.loads(connection.recv()) == {"event": "start"}
        yield connection


def until_exit(connection: ClientConnection) -> tuple[bytes, dict[str, Any]]:
    """Return all output and the last event."""
    output = b""
    for message in connection:
        if isinstance(message, bytes):
            output += message[1:]
        elif (event := json.loads(message))["event"] != "taken":
            return output, event
    raise AssertionError("the connection ended without an exit")


def test_a_terminal_has_its_size_and_changes_it(daemon: Daemon, sandbox: str) -> None:
    command = "stty size; read line; stty size; test -t 0 -a -t 1 -a -t 2 && echo all"
    with open_terminal(daemon, sandbox, {"rows": 31, "columns": 97}, command=command) as connection:
        first = connection.recv()
        assert isinstance(first, bytes)
        assert first[1:].startswith(b"31 97")
        connection.send(json.dumps({"event": "resize", "rows": 40, "columns": 100}))
        connection.send(b"go\n")
        output, ended = until_exit(connection)
    assert b"40 100" in output
    assert b"all" in output
    assert ended["exit_code"] == 0


def test_signals_reach_the_command(daemon: Daemon, sandbox: str) -> None:
    command = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done"
    with open_terminal(daemon, sandbox, None, command=command) as connection:
        assert connection.recv() == b"\x01ready\n"
        connection.send(json.dumps({"event": "signal", "name": "NOSUCH"}))
        assert json.loads(connection.recv())["error"]["code"] == "invalid"
        connection.send(json.dumps({"event": "signal", "name": "INT"}))
        output, ended = until_exit(connection)
    assert output == b"caught\n"
    assert ended["exit_code"] == 5


def test_an_interrupt_typed_at_a_terminal_arrives(daemon: Daemon, sandbox: str) -> None:
    with open_terminal(
        daemon, sandbox, {"rows": 24, "columns": 80}, command="echo ready; exec sleep 1000"
    ) as connection:
        connection.recv()
        connection.send(b"\x03")
        _, ended = until_exit(connection)
    assert ended["signal"] == 2 or ended["exit_code"] == 130


def test_closing_the_websocket_kills_the_command(daemon: Daemon, sandbox: str, workspace: Path) -> None:
    os.mkfifo(workspace / "end")
    command = "exec 9> end; sleep 1000"
    with open_terminal(daemon, sandbox, None, command=command) as connection, (workspace / "end").open() as end:
        connection.close()
        assert end.read() == ""


@pytest.mark.parametrize(
    "first",
    ["{", "{}", '{"exec": {"command": "true", "nonsense": 1}}', '{"exec": {}, "terminal": {"rows": 0, "columns": 1}}'],
)
def test_a_wrong_first_message_is_told(daemon: Daemon, sandbox: str, first: str) -> None:
    with web_socket(daemon, sandbox) as connection:
        connection.send(first)
        told = json.loads(connection.recv())
        assert (told["event"], told["error"]["code"]) == ("error", "invalid")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Authorization": "Bearer no"}, 401), ({"Authorization": ""}, 401), ({"Origin": "https://evil.example"}, 403)],
)
def test_a_websocket_needs_who_and_whence(daemon: Daemon, sandbox: str, headers: dict[str, str], status: int) -> None:
    with pytest.raises(InvalidStatus) as caught, web_socket(daemon, sandbox, **headers):
        raise AssertionError("it opened")
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body or b"")["code"] in ("unauthenticated", "denied")


def test_a_shell_on_a_real_terminal(client: HttpClient, sandbox: str) -> None:
    ours, theirs = pty.openpty()
    result: list[Any] = []

    def run() -> None:
        result.append(
            client.run(
                sandbox, Exec(command="read a; echo got-$a"), stdin=theirs, stdout=theirs, stderr=theirs, terminal=True
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    os.write(ours, b"this\n")
    thread.join(60)
    os.close(theirs)
    shown = b""
    while b"got-this" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert result[0].exit_code == 0


def test_a_missing_sandbox_is_told_by_run(client: HttpClient) -> None:
    with pytest.raises(FluxError) as caught:
        client.run("sbnone", Exec(command="true"), stdin=None, stdout=1, stderr=2)
    assert caught.value.code is Code.NOT_FOUND


def test_odd_names_travel_both_ways(client: HttpClient, sandbox: str, workspace: Path) -> None:
    odd = "/d\udcff\n &?#%/x\x1b\u202e"
    client.write_file(sandbox, odd, io.BytesIO(b"data"))
    assert os.fsencode(workspace) + odd.encode("utf-8", "surrogateescape") in [
        os.path.join(root, name) for root, _, names in os.walk(os.fsencode(workspace)) for name in names
    ]
    target = io.BytesIO()
    client.read_file(sandbox, odd, target)
    assert target.getvalue() == b"data"
    listed = client.call("files.list", sandbox=sandbox, query={"path": odd.rpartition("/")[0]})
    assert [entry["name"] for entry in listed["entries"]] == ["x\x1b\u202e"]


def test_half_an_upload_is_no_file(daemon: Daemon, http: httpx.Client, sandbox: str, workspace: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * MIB
        raise RuntimeError("hang up")

    with pytest.raises(RuntimeError), daemon.http() as caller:
        caller.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "/half"}, content=broken())
    # A second upload is served after the first one's thread is through with it.
    assert http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "/whole"}, content=b"y").status_code == 200
    assert not (workspace / "half").exists()


def test_a_wait_ends_with_the_decision(daemon: Daemon, client: HttpClient, sandbox: str) -> None:
    changeset = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command="echo x > y"))["id"]
    names = {"sandbox": sandbox, "changeset": changeset}
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(daemon.client().call, "changeset.wait", query={"timeout_seconds": 60}, **names)
        client.call("changeset.reject", body=Decide(comment="no"), **names)
        heard = waiting.result()
    assert (heard["state"], heard["comment"]) == ("rejected", "no")


def test_the_audit_log_can_be_awaited(daemon: Daemon, client: HttpClient, sandbox: str) -> None:
    cursor = None
    while (page := client.call("audit.list", query={"cursor": cursor, "limit": 500}))["items"]:
        cursor = page["next_cursor"]
    with ThreadPoolExecutor(1) as beside:
        query = {"cursor": cursor, "wait_seconds": 60, "sandbox_id": sandbox}
        waiting = beside.submit(daemon.client().call, "audit.list", query=query)
        client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command="true"))
        heard = waiting.result()
    assert [line["event"] for line in heard["items"]] == ["changeset.create"]
    assert heard["items"][0]["vm_id"] == sandbox


def test_a_flood_of_output_costs_no_memory(daemon: Daemon, http: httpx.Client, sandbox: str) -> None:
    http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": "true"})
    before = _peak(daemon)
    flood = f"head -c {300 * MIB} /dev/zero | tr '\\0' x"
    reply = http.post(f"/v1/sandboxes/{sandbox}/speculate", json={"command": flood})
    assert reply.json()["stdout_bytes"] == 300 * MIB
    assert (
        sum(len(base64.b64decode(event.get("data", ""))) for event in events(http, sandbox, command=flood)) == 300 * MIB
    )
    assert _peak(daemon) - before <= 60 * 1024


def _peak(daemon: Daemon) -> int:
    """Return the largest memory that the daemon ever held, in KiB."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
