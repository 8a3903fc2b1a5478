"""The daemon's own life: how it starts, what it tells, how it stops, what a crash leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flux.core.errors import FluxError
from flux.core.requests import Approve, CreateSandbox, Exec, Speculate
from tests.api.daemons import Daemon, launch


def failed(state_directory: Path, tmp_path: Path, *options: str) -> tuple[int, str]:
    """Start a daemon that cannot start; return its exit code and what it said last."""
    log = tmp_path / "failed.log"
    process = launch(state_directory, log, *options)
    stdout, _ = process.communicate(timeout=60)
    assert stdout == b""
    return process.returncode, log.read_text().splitlines()[-1]


def test_it_tells_where_it_is(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    told = json.loads((daemon.state_directory / "daemon.json").read_text())
    assert told == {"pid": daemon.process.pid, "url": daemon.url, "socket": str(daemon.state_directory / "socket")}
    assert stat.S_IMODE(daemon.state_directory.stat().st_mode) == 0o700
    assert daemon.client().call("health")["status"] == "ok"
    assert daemon.local().call("health")["status"] == "ok"


def test_it_leaves_nothing_when_it_stops(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    assert daemon.stop() == 0
    assert not (daemon.state_directory / "socket").exists()
    assert not (daemon.state_directory / "daemon.json").exists()
    assert daemon.records()[-1]["event"] == "stopped"


def test_a_second_daemon_names_the_first(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start_daemon()
    code, said = failed(daemon.state_directory, tmp_path)
    assert code == 69
    assert f"process {daemon.process.pid}" in said
    assert "daemon stop" in said
    assert daemon.client().call("health")["status"] == "ok"


def test_a_taken_port_is_named(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = failed(tmp_path / "other", tmp_path, "--listen", f"127.0.0.1:{port}")
    assert code == 69
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_it_does_not_listen_beyond_loopback_in_the_clear(tmp_path: Path, listen: str) -> None:
    code, said = failed(tmp_path / "state", tmp_path, "--listen", listen)
    assert code == 77
    assert "--tls-cert" in said
    assert "--insecure" in said


def test_insecure_is_a_choice(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--listen", "0.0.0.0:0", "--insecure")
    port = daemon.url.rpartition(":")[2]
    daemon.url = f"http://127.0.0.1:{port}"
    with daemon.anonymous() as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"host": "flux.example"}).status_code == 200


@pytest.mark.parametrize("listen", ["nonsense", ":80", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_a_wrong_address_is_refused(tmp_path: Path, listen: str) -> None:
    code, said = failed(tmp_path / "state", tmp_path, "--listen", listen)
    assert code == 64
    assert "HOST:PORT" in said


def test_it_speaks_tls(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key))
    assert daemon.url.startswith("https://")
    with daemon.anonymous(verify=str(certificate)) as client:
        assert client.get("/healthz").status_code == 200
    assert daemon.local().call("health")["status"] == "ok"


def test_half_of_tls_is_refused(tmp_path: Path) -> None:
    code, said = failed(tmp_path / "state", tmp_path, "--tls-cert", "/nowhere")
    assert code == 64
    assert "--tls-key" in said


def test_a_long_state_directory_has_a_socket_too(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    place = tmp_path / ("d" * 100) / ("e" * 100)
    place.parent.mkdir()
    daemon = start_daemon(state_directory=place)
    assert daemon.local().call("health")["status"] == "ok"


def test_sandboxes_outlast_the_daemon(start_daemon: Callable[..., Daemon], workspace: Path) -> None:
    daemon = start_daemon()
    made = daemon.client().call("sandbox.create", body=CreateSandbox(workspace=str(workspace), name="kept"))
    token = daemon.token
    assert daemon.stop() == 0
    again = start_daemon(state_directory=daemon.state_directory)
    assert again.token == token
    assert again.client().call("sandbox.get", sandbox="kept")["id"] == made["id"]


def test_background_processes_live_as_long_as_the_daemon(start_daemon: Callable[..., Daemon], workspace: Path) -> None:
    daemon = start_daemon()
    client = daemon.client()
    sandbox = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    # It writes to the output of an exec that is long over, and must not die of that.
    behind = "(read line < gate; echo to-nobody; echo $line > said; echo done > gate) &"
    started = client.call("sandbox.exec", sandbox=sandbox, body=Exec(command=f"mkfifo gate; {behind} echo started"))
    assert started["stdout"] == "started\n"
    heard = client.call("sandbox.exec", sandbox=sandbox, body=Exec(command="echo on > gate; cat gate"))
    assert heard["stdout"] == "done\n"
    assert (workspace / "said").read_text() == "on\n"
    assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_ends_what_runs_within_a_bound(
    start_daemon: Callable[..., Daemon], workspace: Path, number: int
) -> None:
    daemon = start_daemon()
    sandbox = daemon.client().call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    os.mkfifo(workspace / "gate")
    # A length of time that no other test sleeps for.
    mark = f"1000.{os.getpid()}{number:02d}"
    body = {"command": f"echo $$ > gate; exec sleep {mark}"}

    def run() -> None:
        with daemon.http() as client, pytest.raises(Exception):  # noqa: B017 - the connection is cut in one way or another
            client.post(f"/v1/sandboxes/{sandbox}/exec", json=body).raise_for_status()

    caller = threading.Thread(target=run)
    caller.start()
    assert (workspace / "gate").read_text()
    daemon.signal(number)
    assert daemon.ended() == 0
    caller.join(30)
    assert not caller.is_alive()
    assert f"sleep\0{mark}".encode() not in b"".join(_commands())


def _commands() -> list[bytes]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found.append((process / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_a_killed_daemon_is_followed_by_a_sound_one(start_daemon: Callable[..., Daemon], workspace: Path) -> None:
    daemon = start_daemon()
    client = daemon.client()
    sandbox = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    changeset = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command="echo x > new"))
    client.call("changeset.approve", sandbox=sandbox, changeset=changeset["id"], body=Approve())
    daemon.kill()
    again = start_daemon(state_directory=daemon.state_directory)
    client = again.client()
    assert client.call("changeset.get", sandbox=sandbox, changeset=changeset["id"])["state"] == "approved"
    assert client.call("changeset.apply", sandbox=sandbox, changeset=changeset["id"])["state"] == "applied"
    assert (workspace / "new").read_text() == "x\n"


def test_a_daemon_killed_while_it_applies_leaves_all_or_nothing(
    start_daemon: Callable[..., Daemon], workspace: Path
) -> None:
    daemon = start_daemon()
    client = daemon.client()
    sandbox = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    command = "for i in $(seq 1000); do echo $i > f$i; done; rm notes.txt"
    changeset = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command=command))["id"]
    names = {"sandbox": sandbox, "changeset": changeset}
    client.call("changeset.approve", body=Approve(), **names)
    before = _tree(workspace)
    applying = threading.Thread(target=_cut_off, args=(daemon, names))
    applying.start()
    while applying.is_alive() and not any(name.startswith("f") for name in os.listdir(workspace)):
        continue
    daemon.kill()
    applying.join(30)
    client = start_daemon(state_directory=daemon.state_directory).client()
    found = client.call("changeset.get", **names)
    if found["state"] == "applied":
        assert len(_tree(workspace)) == len(before) + 999
    else:
        assert found["state"] == "failed"
        assert found["error"]
        assert _tree(workspace) == before
    events = client.call("audit.list", query={"changeset": changeset})["items"]
    assert events[-1]["event"] == f"changeset.{found['state']}"


def _tree(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def _cut_off(daemon: Daemon, names: dict[str, str]) -> None:
    with contextlib.suppress(FluxError):
        daemon.client().call("changeset.apply", **names)


def test_metrics_count_what_happened(start_daemon: Callable[..., Daemon], workspace: Path) -> None:
    daemon = start_daemon()
    client = daemon.client()
    sandbox = client.call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))["id"]
    changeset = client.call("sandbox.speculate", sandbox=sandbox, body=Speculate(command="printf 12345 > new"))
    client.call("changeset.approve", sandbox=sandbox, changeset=changeset["id"], body=Approve())
    (workspace / "new").write_text("mine")
    with daemon.http() as http:
        assert http.post(f"/v1/sandboxes/{sandbox}/changesets/{changeset['id']}/apply").status_code == 409
    with daemon.anonymous() as http:
        page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    lines = page.text.splitlines()
    assert 'flux_operations_total{operation="sandbox.create",outcome="ok"} 1.0' in lines
    assert 'flux_operations_total{operation="changeset.apply",outcome="conflict"} 1.0' in lines
    assert 'flux_operation_seconds_count{operation="sandbox.speculate"} 1.0' in lines
    assert 'flux_changesets_total{state="approved"} 1.0' in lines
    assert "flux_conflicts_total 1.0" in lines
    assert "flux_staged_bytes_total 5.0" in lines
    assert any(line.startswith("flux_live_sandboxes ") for line in lines)
