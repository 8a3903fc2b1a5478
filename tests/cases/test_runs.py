"""The cases in which the command misbehaves: it lingers, floods, forks, fills, breaks out or calls the world."""

from __future__ import annotations

import base64
import re
import socket
import time
from pathlib import Path

import pytest

from tests.cases.kit import ENVIRONMENT, Case, Daemon, Flux, Program, Refused, alive, look, reported

pytestmark = pytest.mark.root
LIMIT_MIB = 32
#: What the daemon may hold at most, whatever a command prints.
MEMORY_MIB_MAX = 300


@pytest.fixture(params=["daemon", "embedded"])
def flux(request: pytest.FixtureRequest) -> Flux:
    name = "program" if request.param == "embedded" else "daemon"
    found: Flux = request.getfixturevalue(name)
    return found


# 33, 34


@pytest.mark.parametrize(
    "command",
    [
        "(sleep 977.{0}; echo late>late) & echo now",
        "setsid nohup sh -c 'sleep 977.{0}; touch late' >/dev/null 2>&1 & echo now",
        "(setsid sh -c '(sleep 977.{0}; touch late) & exit' &) ; echo now",
        "nohup sh -c 'trap \"\" TERM HUP INT; sleep 977.{0}; touch late' & echo now",
    ],
    ids=["background", "setsid", "double-fork", "deaf"],
)
def test_33_34_nothing_outlives_the_command(flux: Flux, place: Path, command: str) -> None:
    case = Case(flux, place / "w", place, "echo a>f")
    mark = str(time.time_ns())
    started = time.monotonic()
    made = case.speculate(command.format(mark))
    assert time.monotonic() - started < 30
    assert (made["stdout"], made["exit_code"], made["timed_out"]) == ("now\n", 0, False)
    assert made["duration_ms"] < 10_000
    assert alive(mark) == []
    assert reported(made) == set()
    case.close()


# 35


def test_35_a_time_out_leaves_a_marked_and_partial_changeset(flux: Flux, place: Path) -> None:
    case = Case(flux, place / "w", place, "echo a>f")
    mark = str(time.time_ns())
    made = case.speculate(
        f"echo part>part; (setsid sleep 978.{mark} &); sleep 979.{mark}; echo x>never", timeout_seconds=1
    )
    assert (made["timed_out"], made["exit_code"]) == (True, None)
    assert 900 < made["duration_ms"] < 20_000
    assert alive(mark) == []
    assert reported(made) == {"+/part"}
    case.apply(made)
    assert (case.workspace / "part").read_text() == "part\n"
    case.close()


# 36


def _peak_mib(daemon: Daemon) -> int:
    pid = daemon.program("daemon", "status")["pid"]
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def test_36_a_flood_is_truncated_and_memory_bounded(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "echo a>f")
    made = case.speculate("head -c 300000000 /dev/zero | tr '\\0' x; echo b>f; exit 7")
    dropped = 300_000_000 - 65536
    assert (made["exit_code"], made["stdout_bytes"]) == (7, 300_000_000)
    assert made["stdout"].startswith("x" * 65536) and len(made["stdout"]) < 65536 + 100
    assert f"[truncated {dropped} bytes]" in made["stdout"]
    assert reported(made) == {"~/f"}
    assert _peak_mib(daemon) < MEMORY_MIB_MAX
    case.close()


def test_36_endless_output_ends_with_the_time_out(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "true")
    made = case.speculate("yes; echo not reached", timeout_seconds=1)
    assert made["timed_out"] and made["stdout"].startswith("y\ny\n") and "[truncated " in made["stdout"]
    assert _peak_mib(daemon) < MEMORY_MIB_MAX
    case.close()


def test_36_bytes_that_are_no_text_come_through(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "true")
    made = case.speculate("printf 'a\\377\\000\\033[31m\\n'; printf '\\376' >&2")
    assert base64.b64decode(made["stdout_base64"]) == b"a\xff\0\033[31m\n"
    assert base64.b64decode(made["stderr_base64"]) == b"\xfe"
    case.close()


# 37


def test_37_a_fork_bomb_is_bounded(daemon: Daemon, place: Path) -> None:
    workspace = place / "w"
    case = Case(daemon, workspace, place, "echo a>f")
    small = daemon.create(workspace, pids=40)
    mark = f"bomb{time.time_ns()}"
    bomb = f"{mark}() {{ {mark} | {mark} & }}; echo b>f; {mark}; sleep 0.5; echo still here"
    made = daemon.speculate(small, bomb, timeout_seconds=30)
    assert re.search(r"(?i)cannot fork|resource temporarily unavailable", made["stderr"])
    assert alive(mark) == []
    assert case.speculate("echo alive")["stdout"] == "alive\n"
    daemon.remove(small)
    case.close()


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_37_a_command_that_fills_the_disk_is_stopped(place: Path, engine: str) -> None:
    limited = Program(place / "state", FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE_MIB=str(LIMIT_MIB))
    case = Case(limited, place / "w", place, "echo a>f")
    with pytest.raises(Refused, match=f"wrote more than {LIMIT_MIB} MiB") as refused:
        case.speculate("head -c 500000000 /dev/zero >fill", engine)
    assert refused.value.code == "exhausted"
    case.untouched()
    assert sum(path.lstat().st_blocks for path in limited.state.rglob("*")) * 512 < LIMIT_MIB << 20
    assert reported(case.speculate("echo b>f", engine)) == {"~/f"}
    case.close()


def test_37_a_workspace_over_the_limit_is_refused_before_it_is_copied(place: Path) -> None:
    limited = Program(place / "state", FLUX_SANDBOX__PROCBOX__MAX_WORKSPACE_MIB="1")
    case = Case(limited, place / "w", place, "head -c 1100000 /dev/urandom >f")
    with pytest.raises(Refused, match="max_workspace_mib"):
        case.speculate("true", "copy")
    case.untouched()
    case.close()


# 38


def test_38_the_host_feels_nothing(flux: Flux, place: Path) -> None:
    name = f"flux-case-{time.time_ns()}"
    case = Case(flux, place / "w", place, "echo a>f; ln -s /etc etc; ln -s ../../../../../../.. up")
    attempts = [
        "kill -9 1",
        "kill -STOP $PPID",
        f"ls /proc/1/root/{place} && echo SEEN",
        f"echo x >/etc/{name}",
        f"echo x >/usr/{name}",
        f"echo x >etc/{name}",
        f"echo x >up/{name}",
        "cat /etc/shadow && echo SEEN",
        f"ls {place} && echo SEEN",
        "mount -t tmpfs none /mnt && echo SEEN",
        f"echo home >$HOME/{name}; echo temporary >/tmp/{name}",
        "cat /proc/sys/kernel/core_pattern | tee /proc/sys/kernel/core_pattern",
    ]
    made = case.speculate("; ".join(f"( {attempt} )" for attempt in attempts) + "; echo b>f; echo done")
    assert made["exit_code"] == 0 and made["stdout"].endswith("done\n") and "SEEN" not in made["stdout"]
    assert made["stderr"].count("Read-only file system") + made["stderr"].count("ermission") >= 5, made["stderr"]
    assert reported(made) == {"~/f"}
    discarded = {one["place"]: (one["entries"], one["size"]) for one in made["discarded"]}
    assert discarded == {"/tmp": (1, 10), "/home/user": (1, 5)}
    places = ["/etc", "/usr", "/", "/tmp", Path.home(), ENVIRONMENT.get("HOME", "/root")]
    assert [where for where in places if Path(where, name).exists()] == []
    case.close()


# 39


ATTEMPTS = """
import socket, sys
host, name = int(sys.argv[1]), sys.argv[2]
inet, inet6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
for family, kind, to in (
    (inet, stream, ("127.0.0.1", host)), (inet, stream, ("192.0.2.7", 80)), (inet, datagram, ("192.0.2.8", 53)),
    (inet6, stream, ("2001:db8::1", 443)), (inet6, stream, ("::1", host)), (unix, stream, chr(0) + name),
    (inet, socket.SOCK_RAW, ("192.0.2.9", 0)),
):
    try:
        one = socket.socket(family, kind, 1 if kind == socket.SOCK_RAW else 0)
        one.settimeout(2)
        one.connect(to)
        one.send(bytes(8))
        print("sent", kind.name)
    except OSError as error:
        print("refused", kind.name, type(error).__name__)
"""


def test_39_the_network_is_denied_and_the_attempts_reported(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "echo a>f")
    name = f"flux-case-{time.time_ns()}"
    (case.workspace / "attempts.py").write_text(ATTEMPTS)
    case.before = look(case.workspace)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        for listener in (server, abstract):
            listener.setblocking(False)
        made = case.speculate(f"/usr/bin/python3 attempts.py {server.getsockname()[1]} {name}")
        for listener in (server, abstract):
            with pytest.raises(BlockingIOError):
                listener.accept()
    said = made["stdout"].split("\n")
    assert [line.split()[0] for line in said if line and "SOCK_DGRAM" not in line] == ["refused"] * 6, said
    effects = made["side_effects"]
    assert (effects["egress"], effects["enforced"], effects["destinations"]) == ("blocked", True, [])
    found = {(flow["proto"], flow["dst"], flow["port"]): flow["verdict"] for flow in effects["observed"]}
    wanted = [("tcp", "192.0.2.7", 80), ("udp", "192.0.2.8", 53), ("tcp", "2001:db8::1", 443)]
    assert {flow: found.get(flow) for flow in wanted} == dict.fromkeys(wanted, "refused")
    assert reported(made) == set()
    case.close()
