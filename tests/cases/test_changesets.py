"""Every case of a changeset, through the program and on a real tree: named exactly, dropped or carried exactly."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cases.kit import Case, Daemon, Program, Refused, entries, names, reported, shell
from tests.cases.rows import ROOT_ROWS, ROWS, Row

pytestmark = pytest.mark.root
ENGINES = ["overlay", "copy"]
MIB = 1 << 20
#: Rows that a program without a daemon is tried on as well.
EMBEDDED = ["10", "28", "32"]


def prove(flux: Daemon | Program, place: Path, row: Row, engine: str) -> None:
    case = Case(flux, place / "workspace", place, row.setup)
    case.carry(row.command, engine, row.wanted)
    case.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ROWS)
def test_row(daemon: Daemon, place: Path, name: str, engine: str) -> None:
    prove(daemon, place, ROWS[name], engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ROOT_ROWS)
def test_row_of_root(daemon: Daemon, place: Path, name: str, engine: str) -> None:
    prove(daemon, place, ROOT_ROWS[name], engine)


@pytest.mark.parametrize("name", EMBEDDED)
def test_row_without_a_daemon(program: Program, place: Path, name: str) -> None:
    prove(program, place, ROWS[name], "overlay")


# 12


def _touch_three(daemon: Daemon, place: Path, directories: int) -> float:
    setup = f"for d in $(seq {directories}); do mkdir $d; for i in $(seq 1000); do echo $i >$d/$i; done; done"
    workspace = place / "workspace"
    workspace.mkdir()
    shell(setup, workspace)
    sandbox = daemon.create(workspace)
    started = time.monotonic()
    made = daemon.speculate(sandbox, "echo x>>1/7; echo x>>2/8; echo x>>3/9; touch 4/1")
    seconds = time.monotonic() - started
    assert reported(made) == {"~/1/7", "~/2/8", "~/3/9"}
    assert made["copy_engine"] == "overlay"
    assert made["changes"]["unchanged"] == directories * 1001 + 1 - 3
    daemon.decide("approve", made)
    assert daemon.decide("apply", made)["state"] == "applied"
    assert (workspace / "2/8").read_text() == "8\nx\n"
    daemon.remove(sandbox)
    return seconds


def test_12_three_of_ten_thousand_files(daemon: Daemon, place: Path) -> None:
    assert _touch_three(daemon, place, 10) < 10


@pytest.mark.slow
def test_12_three_of_a_hundred_thousand_files_in_less_time_than_a_copy(daemon: Daemon, place: Path) -> None:
    speculated = _touch_three(daemon, place, 100)
    started = time.monotonic()
    subprocess.run(["cp", "-a", place / "workspace", place / "copy"], check=True)
    assert speculated < time.monotonic() - started


# 14, 15


def test_14_a_commit_is_whole(daemon: Daemon, place: Path) -> None:
    git = "git -c user.name=a -c user.email=a@example.org"
    case = Case(daemon, place / "w", place, f"git init -q .; echo a>f; git add f; {git} commit -qm one")
    made = case.speculate(f"echo b>>f; echo n>n; git add .; {git} commit -qm two; git gc -q")
    case.apply(made)
    done = shell("git fsck --strict 2>&1; git status --porcelain; git log --format=%s; cat f n", case.workspace)
    assert done.stdout == b"two\none\na\nb\nn\n"
    case.close()


def test_15_a_database_without_a_checkpoint(daemon: Daemon, place: Path) -> None:
    insert = """/usr/bin/python3 -c "
import os, sqlite3
db = sqlite3.connect('db')
db.execute('pragma journal_mode=wal'); db.execute('create table if not exists t (x)')
db.execute('insert into t values (1)'); db.commit(); os._exit(0)"
"""
    case = Case(daemon, place / "w", place, insert)
    made = case.speculate(insert + "test -s db-wal")
    assert made["exit_code"] == 0, made["stderr"]
    assert {"~/db-wal"} <= reported(made) <= {"~/db-wal", "~/db-shm", "~/db"}
    case.apply(made)
    count = "/usr/bin/python3 -c \"import sqlite3; print(*sqlite3.connect('db').execute('select count(*) from t'))\""
    assert shell(count, case.workspace).stdout == b"(2,)\n"
    case.close()


# 16, 17, 28, 32, 44: what a reviewer sees


def test_16_the_diff_says_that_a_newline_is_missing(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "printf 'a\\r\\nb'>f")
    made = case.speculate("printf 'a\\r\\nc'>f; printf x>new")
    texts = {file["path"]: file["text"] for file in daemon.diff(made)["files"]}
    missing = "\\ No newline at end of file\n"
    assert texts["/f"].split("@@\n", 1)[1] == f" a\r\n-b\n{missing}+c\n{missing}"
    assert texts["/new"].split("@@\n", 1)[1] == f"+x\n{missing}"
    case.close()


def test_17_a_binary_file_is_shown_by_size_and_digest(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "true")
    made = case.speculate("head -c 409600 /dev/zero >f")
    [file] = daemon.diff(made)["files"]
    assert (file["text"], file["before"], file["after"]["size"]) == (None, None, 409600)
    assert file["after"]["digest"] == "sha256:" + hashlib.sha256(bytes(409600)).hexdigest()
    assert "binary" in file["note"]
    case.close()


def test_28_risks_are_flagged(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "cp /bin/true t; mkdir -p .git/hooks; echo a>s")
    made = case.speculate(
        "setcap cap_net_raw+ep t; cp t u; chmod 4755 s; echo x>.git/hooks/pre-commit; ln -s ../../etc l; echo k>id_rsa"
    )
    risks = {path: set(entry["risks"]) for path, entry in entries(made).items()}
    assert "capability" in risks["/t"] and "setuid" in risks["/s"] and "git_hook" in risks["/.git/hooks/pre-commit"]
    assert "symlink_escapes" in risks["/l"] and "secret_like_name" in risks["/id_rsa"]
    case.close()


def _on_a_terminal(program: Program, *words: str) -> bytes:
    """Return what the program shows a person."""
    leader, follower = os.openpty()
    command = ["fluxctl", "--state-dir", str(program.state), *words]
    path = f"{Path(os.sys.executable).parent}:{program.environment['PATH']}"  # type: ignore[attr-defined]
    environment = {**program.environment, "PATH": path, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_drain, leader)
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=follower, env=environment, check=True, timeout=60)
        os.close(follower)
        return shown.result()


def _drain(leader: int) -> bytes:
    found = b""
    try:
        while data := os.read(leader, 65536):
            found += data
    except OSError:
        pass  # A terminal whose other end is closed says so with EIO.
    os.close(leader)
    return found


def test_32_names_are_printed_escaped(program: Program, place: Path) -> None:
    case = Case(program, place / "w", place, "true")
    made = case.speculate(
        """n=$(printf '\\033[31mred\\007\\377\\342\\200\\256bidi\\rX'); printf 'y\\033[44m\\007'>"$n" """
    )
    entry = made["changes"]["added"][0]
    assert "control_chars_in_name" in entry["risks"]
    for words in ([], ["--diff"]):
        shown = _on_a_terminal(program, "sandbox", "changeset", case.sandbox, made["id"], *words)
        assert b"red" in shown
        for raw in (b"\033[31m", b"\033[44m", b"\007", b"\377", "\u202e".encode(), b"\rX"):
            assert raw not in shown, (raw, shown)
    case.close()


def test_44_deletions_head_the_review_and_a_reject_keeps_everything(program: Program, place: Path) -> None:
    case = Case(program, place / "w", place, "git init -q .; for i in $(seq 30); do printf 0123456789 >u$i; done")
    made = case.speculate("git clean -qfd; echo added>zz")
    shown = re.sub(
        rb"\033\[[0-9;?]*[a-zA-Z]", b"", _on_a_terminal(program, "sandbox", "changeset", case.sandbox, made["id"])
    )
    assert made["counts"]["deleted"] == 30
    assert any("deletes_many" in entry["risks"] for entry in made["changes"]["deleted"])
    head = shown[: shown.index(b"/zz")].decode()
    assert re.search(r"\b30\b", head) and re.search(r"\b300\b", head), head
    program.decide("reject", made)
    case.untouched()
    case.close()


# 21, 22, 23


SOCKET = "/usr/bin/python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('{}')\""


@pytest.mark.parametrize("engine", ENGINES)
def test_21_sockets_are_skipped_or_left_alone(daemon: Daemon, place: Path, engine: str) -> None:
    case = Case(daemon, place / "w", place, SOCKET.format("old") + "; mkfifo p")
    expected, _ = case.expect("echo a>f")
    made = case.speculate(SOCKET.format("new") + "; (echo stuck >p &); echo a>f", engine)
    assert reported(made) == {"+/f"}
    assert [entry["path"] for entry in made["skipped"]] == ["/new"]
    case.apply(made)
    case.equals(expected, made)
    case.close()


@pytest.mark.parametrize("engine", ["auto", "copy"])
def test_22_devices_survive_and_none_is_made(daemon: Daemon, place: Path, engine: str) -> None:
    case = Case(daemon, place / "w", place, "mknod w c 0 0; mknod n c 1 3; mkdir d; mknod d/w c 0 0; echo a>f")
    expected, _ = case.expect("echo b>>f; echo c>d/f")
    made = case.speculate("echo b>>f; echo c>d/f; mknod x c 1 3 || mknod y b 7 0 || mknod z c 0 0 || exit 9", engine)
    assert made["exit_code"] == 9 and made["stderr"].count("Operation not permitted") >= 2
    assert made["copy_engine"] != "overlay"
    assert engine == "copy" or "0:0" in made["copy_engine_reason"]
    assert reported(made) == {"~/f", "+/d/f"}
    case.apply(made)
    case.equals(expected, made)
    case.close()


def test_22_an_overlay_over_a_device_0_0_is_refused_by_name(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "mknod w c 0 0")
    with pytest.raises(Refused, match="/w is a character device 0:0"):
        case.speculate("true", "overlay")
    case.untouched()
    case.close()


# 40


@pytest.mark.parametrize(
    ("sizes", "over"),
    [
        ([16 * MIB], []),
        ([16 * MIB + 1], ["/0"]),
        ([16 * MIB] * 4, []),
        ([16 * MIB] * 4 + [1], ["/4"]),
    ],
    ids=["file", "file-and-a-byte", "total", "total-and-a-byte"],
)
def test_40_caps_are_exact(daemon: Daemon, place: Path, sizes: list[int], over: list[str]) -> None:
    case = Case(daemon, place / "w", place, "echo a>f")
    write = "; ".join(f"head -c {size} /dev/zero | tr '\\0' {name} >{name}" for name, size in enumerate(sizes))
    expected, _ = case.expect(write)
    made = case.speculate(write)
    assert [entry["path"] for entry in made["unstaged"]] == over
    if not over:
        assert reported(made) == names(case.before, expected)
        case.apply(made)
        case.equals(expected, made)
    else:
        assert daemon.decide("approve", made)["warnings"]
        with pytest.raises(Refused, match="reject it") as refused:
            daemon.decide("apply", made)
        assert refused.value.status == 422
        case.untouched()
        assert daemon.decide("reject", made)["state"] == "rejected"
    case.close()


# 41, 42


def test_41_what_changed_meanwhile_is_kept(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "echo a>f; echo b>g")
    made = case.speculate("echo run>f; rm g")
    daemon.decide("approve", made)
    shell("echo outside>f; echo x>new", case.workspace)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            daemon.decide("apply", made)
        assert (refused.value.status, refused.value.code) == (409, "conflict")
        assert {entry["path"] for entry in refused.value.details["conflicts"]} == {"/f", "/new"}
        assert all(entry["reason"] for entry in refused.value.details["conflicts"])
    assert shell("cat f g new", case.workspace).stdout == b"outside\nb\nx\n"
    assert daemon.show(made)["state"] == "approved"
    case.close()


@pytest.mark.parametrize("at_once", [False, True], ids=["in-turn", "at-once"])
def test_42_the_first_of_two_wins(daemon: Daemon, place: Path, at_once: bool) -> None:
    case = Case(daemon, place / "w", place, "echo base>f; echo base>g")
    pair = [case.speculate(f"echo {word}>f; echo {word}>g; echo {word}>{word}") for word in ("one", "two")]
    for made in pair:
        daemon.decide("approve", made)
    with ThreadPoolExecutor(2 if at_once else 1) as pool:
        outcomes = [outcome.exception() for outcome in [pool.submit(daemon.decide, "apply", made) for made in pair]]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "Refused"]
    refused = next(outcome for outcome in outcomes if isinstance(outcome, Refused))
    assert refused.status == 409
    winner = ("one", "two")[outcomes.index(None)]
    assert at_once or winner == "one"
    assert shell("cat f g; ls", case.workspace).stdout.decode().split() == [winner, winner, "f", "g", winner]
    case.close()


# Narrowing


def test_only_the_paths_that_were_asked_for(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "mkdir -p d/e o; echo a>d/f; echo b>o/f; ln d/f d/h; echo t>top")
    command = "echo x>d/f; mv o d/p; echo c>top; echo n>d/e/n"
    made = case.speculate(command, paths=["/d"])
    assert reported(made) == {"~/d/f", "~/d/h", "+/d/p", "+/d/p/f", "+/d/e/n"}
    case.apply(made)
    assert shell("cat d/f d/h d/p/f d/e/n o/f top", case.workspace).stdout == b"x\nx\nb\nn\nb\nt\n"
    case.close()


def test_only_the_part_that_was_approved(daemon: Daemon, place: Path) -> None:
    case = Case(daemon, place / "w", place, "echo a>f; ln f g; echo b>o")
    made = case.speculate("echo x>f; mkdir -p d/e; echo n>d/e/n; echo m>d/m; rm o")
    part = daemon.decide("approve", made, only=["/f", "/d/e/n"])
    assert reported(part) == {"~/f", "~/g", "+/d", "+/d/e", "+/d/e/n"}
    daemon.decide("apply", made)
    assert shell("cat f g o d/e/n; ls d", case.workspace).stdout == b"x\nx\nb\nn\ne\n"
    case.close()
