"""Processes over the data plane: started, listened to, fed, signalled, and gone with their sandbox."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flux.api.envd.processes import PER_SANDBOX_MAX
from tests.api.daemons import Daemon
from tests.api.envd import STREAM, Ended, Envd, collect, frame, said, selected, start

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def envd(daemon: Daemon) -> Iterator[Envd]:
    one = Envd(daemon.url, daemon.token, envVars={"FROM": "create", "BOTH": "create"})
    yield one
    one.close()


@pytest.fixture
def own(daemon: Daemon) -> Iterator[Envd]:
    """A sandbox of the test's own, to be paused or killed."""
    one = Envd(daemon.url, daemon.token)
    yield one
    one.close()


def resident(daemon: Daemon) -> int:
    """Return the daemon's memory in bytes."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def test_events_of_a_process(envd: Envd) -> None:
    with envd.stream("Start", start("echo out; echo err >&2; exit 3")) as happened:
        first = next(happened)
        stdout, stderr, end = collect(happened)
    assert list(first) == ["start"] and first["start"]["pid"] > 0
    assert (stdout, stderr) == (b"out\n", b"err\n")
    assert end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert envd.run("true")[2] == {"exited": True, "status": "exit status 0"}


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("kill -9 $$", {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}),
        ("kill -15 $$", {"exitCode": -1, "status": "signal: terminated", "error": "signal: terminated"}),
    ],
)
def test_a_process_that_a_signal_ended(envd: Envd, command: str, end: dict[str, object]) -> None:
    assert envd.run(command)[2] == end


def test_a_user_s_surroundings(envd: Envd) -> None:
    script = "echo $USER $LOGNAME $HOME $SHELL $PWD; echo $FROM $BOTH $NEW"
    headers = {"authorization": "Basic " + base64.b64encode(b"root:").decode()}
    out = envd.run(script, envs={"BOTH": "call", "NEW": "a b"})[0].decode().splitlines()
    assert out == ["user user /home/user /bin/bash /home/user", "create call a b"]
    with envd.stream("Start", start(script), **headers) as happened:
        assert collect(happened)[0].decode().splitlines()[0] == "root root /root /bin/bash /root"


@pytest.mark.parametrize(
    ("cwd", "place"),
    [("~", "/home/user"), ("~/a", "/home/user/a"), ("a", "/home/user/a"), ("/tmp", "/tmp"), ("", "/home/user")],
)
def test_where_a_process_starts(envd: Envd, cwd: str, place: str) -> None:
    envd.run("mkdir -p ~/a")
    assert envd.run("pwd", cwd=cwd)[0].decode().strip() == place


@pytest.mark.parametrize(
    ("request_body", "user"),
    [
        (start("true", cwd="/nowhere"), "user"),
        (start("true", cwd="/etc/passwd"), "user"),
        (start("true", cwd="/\0"), "user"),
        ({"process": {"cmd": "/no/such/program"}}, "user"),
        ({"process": {"cmd": "x\0y"}}, "user"),
        ({"process": {}}, "user"),
        (start("true", envs={"A=B": "c"}), "user"),
        (start("true"), "nobody-here"),
        (start("true"), "99999999999"),
    ],
)
def test_what_cannot_be_started(envd: Envd, request_body: dict[str, object], user: str) -> None:
    authorization = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    with (
        envd.stream("Start", request_body, authorization=authorization) as happened,
        pytest.raises(Ended) as caught,
    ):
        list(happened)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize("content", [None, "fifo", "link", "directory", "long"])
def test_a_sandbox_s_passwd_is_only_read(own: Envd, content: str | None) -> None:
    """Whatever the sandbox makes of it, nothing outside is read and nobody waits."""
    make = {
        None: "rm /etc/passwd",
        "fifo": "rm /etc/passwd; mkfifo /etc/passwd",
        "link": "ln -sf ../../../../../../../proc/self/environ /etc/passwd",
        "directory": "rm /etc/passwd; mkdir /etc/passwd",
        "long": "head -c 3000000 /dev/zero > /etc/passwd",
    }[content]
    root = "Basic " + base64.b64encode(b"root:").decode()
    with own.stream("Start", start(make), authorization=root) as happened:
        assert collect(happened)[2]["status"] == "exit status 0"
    with own.stream("Start", start("true")) as happened, pytest.raises(Ended) as caught:
        list(happened)
    assert caught.value.code == "invalid_argument"


def test_input_is_open_unless_it_is_declined(envd: Envd) -> None:
    assert envd.run("cat; echo over", stdin=False)[0] == b"over\n"
    for stdin in (None, True):
        with envd.stream("Start", start("cat; echo over", stdin=stdin)) as happened:
            pid = next(happened)["start"]["pid"]
            envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"a\0b").decode()}})
            assert said(next(happened)) == b"a\0b"
            envd.call("CloseStdin", selected(pid))
            assert collect(happened)[0] == b"over\n"


def test_64_mib_through_a_process_and_back(envd: Envd) -> None:
    piece = os.urandom(MIB)
    encoded = json.dumps({"data": {"input": {"stdin": base64.b64encode(piece).decode()}}}).encode()

    def feed(pid: int) -> int:
        def content() -> Iterator[bytes]:
            yield frame(json.dumps({"start": selected(pid)}).encode())
            for _ in range(64):
                yield frame(encoded)
            yield frame(b'{"keepalive":{}}')

        reply = envd.http.post("/process.Process/StreamInput", content=content(), headers=STREAM)
        envd.call("CloseStdin", selected(pid))
        return reply.status_code

    digest = hashlib.sha256()
    with ThreadPoolExecutor() as pool, envd.stream("Start", start("cat", stdin=True)) as happened:
        fed = pool.submit(feed, next(happened)["start"]["pid"])
        for event in happened:
            digest.update(said(event))
        assert fed.result() == 200
    assert digest.digest() == hashlib.sha256(piece * 64).digest()


def test_nothing_is_lost_right_before_an_end(envd: Envd) -> None:
    for _ in range(20):
        out, err, _ = envd.run("head -c 200000 /dev/zero; head -c 100000 /dev/zero >&2")
        assert (len(out), len(err)) == (200_000, 100_000)


def test_what_runs_on_in_the_background_holds_nobody_up(envd: Envd) -> None:
    out, _, end = envd.run("(while :; do echo still; done) & echo $!")
    assert end["status"] == "exit status 0"
    background = int(out.split()[0])
    assert envd.run(f"kill -0 {background} && kill -9 {background}; echo $?")[0] == b"0\n"


def test_fifty_at_once(envd: Envd) -> None:
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(lambda number: envd.run(f"sleep 0.1; echo {number}")[0], range(50)))
    assert found == [f"{number}\n".encode() for number in range(50)]


def test_processes_are_listed_and_found_by_tag(envd: Envd) -> None:
    with envd.stream("Start", start("read line", stdin=True, tag="mine", cwd="/tmp", envs={"A": "b"})) as happened:
        pid = next(happened)["start"]["pid"]
        listed = [one for one in envd.call("List")["processes"] if one["pid"] == pid]
        config = {"cmd": "/bin/bash", "args": ["-c", "read line"], "envs": {"A": "b"}, "cwd": "/tmp"}
        assert listed == [{"config": config, "pid": pid, "tag": "mine"}]
        with envd.stream("Connect", {"process": {"tag": "mine"}}) as other:
            assert next(other) == {"start": {"pid": pid}}
        envd.call("CloseStdin", {"process": {"tag": "mine"}})
        assert collect(happened)[2]["exitCode"] == 1
    assert pid not in envd.pids()


def test_all_listeners_hear_the_same_and_late_ones_the_end(envd: Envd) -> None:
    with envd.stream("Start", start("read a; echo $a; read a; echo $a; exit 4", stdin=True)) as first:
        pid = next(first)["start"]["pid"]
        with envd.stream("Connect", selected(pid)) as second, envd.stream("Connect", selected(pid)) as third:
            assert next(second) == next(third) == {"start": {"pid": pid}}
            envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"one\n").decode()}})
            assert said(next(first)) == said(next(second)) == said(next(third)) == b"one\n"
        envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"two\n").decode()}})
        assert collect(first)[0] == b"two\n"
    with envd.stream("Connect", selected(pid)) as late:
        assert next(late) == {"start": {"pid": pid}}
        assert collect(late)[2]["exitCode"] == 4


def test_a_process_outlives_its_caller(envd: Envd) -> None:
    with envd.stream("Start", start("read line; echo $line", stdin=True)) as happened:
        pid = next(happened)["start"]["pid"]
    assert pid in envd.pids()
    with envd.stream("Connect", selected(pid)) as happened:
        next(happened)
        envd.call("SendInput", {**selected(pid), "input": {"stdin": base64.b64encode(b"hi\n").decode()}})
        assert collect(happened)[0] == b"hi\n"


def test_a_terminal(envd: Envd) -> None:
    pty = {"size": {"rows": 30, "cols": 100}}
    with envd.stream("Start", start("stty size; read line; stty size; exit 5", pty=pty)) as happened:
        pid = next(happened)["start"]["pid"]
        event = next(happened)
        assert list(event["data"]) == ["pty"] and said(event) == b"30 100\r\n"
        envd.call("Update", {**selected(pid), "pty": {"size": {"rows": 41, "cols": 77}}})
        envd.call("SendInput", {**selected(pid), "input": {"pty": base64.b64encode(b"\r").decode()}})
        stdout, _, end = collect(happened)
    assert stdout.endswith(b"41 77\r\n")
    assert end["exitCode"] == 5


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("SendSignal", {"signal": "SIGNAL_SIGKILL"}, "not_found"),
        ("SendInput", {"input": {"stdin": "YQ=="}}, "not_found"),
        ("CloseStdin", {}, "not_found"),
        ("Update", {"pty": {}}, "not_found"),
    ],
)
def test_a_process_that_is_not_there(envd: Envd, method: str, body: dict[str, object], code: str) -> None:
    for selector in ({"pid": 4_000_000}, {"tag": "nobody"}):
        with pytest.raises(Ended) as caught:
            envd.call(method, {"process": selector, **body})
        assert caught.value.code == code
    with pytest.raises(Ended) as caught:
        envd.call(method, body)
    assert caught.value.code == "invalid_argument"


def test_listening_to_nobody(envd: Envd) -> None:
    with envd.stream("Connect", selected(4_000_000)) as happened, pytest.raises(Ended) as caught:
        list(happened)
    assert caught.value.code == "not_found"


def test_what_a_process_does_not_have(envd: Envd) -> None:
    with envd.stream("Start", start("sleep 600", stdin=False)) as happened:
        pid = next(happened)["start"]["pid"]
        for method, body in (
            ("SendInput", {"input": {"stdin": "YQ=="}}),
            ("SendInput", {"input": {"pty": "YQ=="}}),
            ("Update", {"pty": {"size": {"rows": 1, "cols": 1}}}),
        ):
            with pytest.raises(Ended) as caught:
                envd.call(method, {**selected(pid), **body})
            assert caught.value.code == "failed_precondition"
        with pytest.raises(Ended) as caught:
            envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_UNSPECIFIED"})
        assert caught.value.code == "invalid_argument"
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGKILL"})


def test_sigterm_is_the_process_s_own_affair(envd: Envd) -> None:
    with envd.stream("Start", start("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.02; done")) as on:
        pid = next(on)["start"]["pid"]
        assert said(next(on)) == b"ready\n"
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGTERM"})
        stdout, _, end = collect(on)
    assert (stdout, end["exitCode"]) == (b"caught\n", 9)


def test_sigkill_leaves_nothing_of_it(envd: Envd) -> None:
    script = "(setsid sh -c 'sleep 98761 & exec sleep 98762' &); setsid sleep 98763 & echo up; exec sleep 98764"
    with envd.stream("Start", start(script)) as happened:
        pid = next(happened)["start"]["pid"]
        assert said(next(happened)) == b"up\n"
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGKILL"})
        assert collect(happened)[2] == {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}
    found = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 9876[1-4]'"
    assert envd.run(f"{found} | head -1")[0] == b"0\n"


def test_a_flood_that_nobody_hears_is_dropped(daemon: Daemon, envd: Envd) -> None:
    before, latest = resident(daemon), time.monotonic() + 60
    with envd.stream("Start", start("head -c 100000000 /dev/zero")) as happened:
        pid = next(happened)["start"]["pid"]
    moment = threading.Event()
    while pid in envd.pids():
        assert time.monotonic() < latest
        moment.wait(0.02)
    assert resident(daemon) - before < 64 * MIB


def test_floods_that_nobody_hears_leave_everybody_else_their_turn(envd: Envd) -> None:
    pids = []
    for command in ("exec yes", "while :; do echo on; done", "yes & exit 0", "exec cat /dev/zero"):
        with envd.stream("Start", start(command)) as happened:
            pids.append(next(happened)["start"]["pid"])
    began = time.monotonic()
    for _ in range(20):
        assert envd.run("true")[2]["exited"]
    assert time.monotonic() - began < 30
    assert envd.run("pkill -9 -x yes; echo done")[0] == b"done\n"
    for pid in set(pids) & set(envd.pids()):
        envd.call("SendSignal", {**selected(pid), "signal": "SIGNAL_SIGKILL"})


def test_a_listener_that_never_reads_holds_the_process_and_no_memory(daemon: Daemon, envd: Envd) -> None:
    place = urlsplit(envd.url)
    body = frame(json.dumps(start("head -c 64000000 /dev/zero")).encode())
    headers = {**envd.headers, **STREAM, "host": place.netloc, "content-length": str(len(body)), "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    before = resident(daemon)
    with socket.create_connection((place.hostname or "", place.port or 0)) as caller:
        caller.sendall(f"POST /process.Process/Start HTTP/1.1\r\n{lines}\r\n".encode() + body)
        assert caller.recv(12) == b"HTTP/1.1 200"
        for _ in range(20):
            envd.run("true")
        assert resident(daemon) - before < 48 * MIB
        left = bytearray()
        while data := caller.recv(MIB):
            left = (left + data)[-200:]
    assert b'"status":"exit status 0"' in left


def test_a_sandbox_has_only_so_many_processes(own: Envd) -> None:
    for _ in range(PER_SANDBOX_MAX):
        with own.stream("Start", start("exec sleep 600")) as happened:
            next(happened)
    with own.stream("Start", start("true")) as happened, pytest.raises(Ended) as caught:
        list(happened)
    assert caught.value.code == "resource_exhausted"
    own.call("SendSignal", {**selected(own.pids()[0]), "signal": "SIGNAL_SIGKILL"})
    ended = len(own.pids())
    assert ended < PER_SANDBOX_MAX
    assert own.run("true")[2]["exited"]


def stopped(happened: Iterator[object]) -> Ended:
    with pytest.raises(Ended) as caught:
        list(happened)
    assert "was not found" not in caught.value.message
    assert "port is not open" not in caught.value.message
    return caught.value


def test_a_pause_ends_all_streams(own: Envd) -> None:
    with ThreadPoolExecutor() as pool, own.stream("Start", start("while :; do echo on; done")) as flood:
        pid = next(flood)["start"]["pid"]
        next(flood)
        with own.stream("Start", start("sleep 600")) as silent:
            next(silent)
            paused = pool.submit(own.control, "POST", "/pause", json={})
            assert stopped(silent).code == "unavailable"
        assert stopped(flood).code == "unavailable"
        assert paused.result().status_code == 204
    assert own.http.get("/health").status_code == 502
    assert own.http.get("/health").json()["message"] == "The sandbox was not found"
    assert own.control("POST", "/connect", json={"timeout": 600}).status_code == 201
    assert own.http.get("/health").status_code == 204
    with own.stream("Connect", selected(pid)) as happened, pytest.raises(Ended) as caught:
        list(happened)
    assert caught.value.code == "not_found"


def test_a_pause_is_not_held_up_by_who_does_not_read(own: Envd) -> None:
    with own.stream("Start", start("yes")) as happened:
        next(happened)
        assert own.control("POST", "/pause", json={}).elapsed.total_seconds() < 10
        assert stopped(happened).code == "unavailable"


def test_a_kill_ends_all_streams(own: Envd) -> None:
    with ThreadPoolExecutor() as pool, own.stream("Start", start("sleep 600")) as happened:
        next(happened)
        killed = pool.submit(own.control, "DELETE", "")
        assert stopped(happened).code == "unavailable"
        assert killed.result().status_code == 204
    assert own.http.get("/health").status_code == 502


def test_what_a_sandbox_tells_of_itself(envd: Envd) -> None:
    assert envd.http.get("/envs").json() == {"FROM": "create", "BOTH": "create"}
    told = envd.http.get("/metrics").json()
    assert told["mem_total"] > told["mem_used"] > 0
    assert told["disk_total"] > told["disk_used"] > 0
    assert told["cpu_count"] >= 1 and told["cpu_used_pct"] >= 0 and told["ts"] > 1_600_000_000
    assert envd.http.get("/nothing").status_code == 404
