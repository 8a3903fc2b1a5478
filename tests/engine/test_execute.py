"""Commands in the real sandbox: streams, time-outs, what stays behind."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from flux.core.errors import Code
from flux.core.requests import Exec
from flux.core.sandbox import Sandbox
from flux.engine.results import ExecResult
from tests.engine.kit import ADMIN, Kit, refused


def run(kit: Kit, sandbox: Sandbox, command: str, **fields: object) -> ExecResult:
    return kit.engine.execute(ADMIN, sandbox.id, Exec(command=command, **fields))  # type: ignore[arg-type]


def test_output_and_exit_code_come_back(kit: Kit, sandbox: Sandbox) -> None:
    result = run(kit, sandbox, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
    assert (result.stdout.text, result.stderr.text) == ("out\n", "err\n")


def test_a_signal_is_told_as_one(kit: Kit, sandbox: Sandbox) -> None:
    result = run(kit, sandbox, "kill -TERM $$")
    assert (result.exit_code, result.signal) == (None, 15)


def test_it_writes_to_the_real_workspace(kit: Kit, sandbox: Sandbox) -> None:
    run(kit, sandbox, "echo x > f")
    assert (kit.work / "f").read_text() == "x\n"


def test_argv_is_taken_as_it_is(kit: Kit, sandbox: Sandbox) -> None:
    result = kit.engine.execute(ADMIN, sandbox.id, Exec(argv=["printf", "%s|", "a b", "$(id)", "*"]))
    assert result.stdout.text == "a b|$(id)|*|"


@pytest.mark.parametrize(
    "request_",
    [
        Exec(),
        Exec(command="a", argv=["b"]),
        Exec(argv=[]),
        Exec(argv=[""]),
        Exec(argv=["a\0b"]),
        Exec(argv=["x" * 200_000]),
        Exec(command="true", timeout_seconds=0),
        Exec(command="true", timeout_seconds=-1),
        Exec(command="true", timeout_seconds=1e9),
        Exec(command="true", cwd="relative"),
        Exec(command="true", environment={"A B": "x"}),
        Exec(command="true", stdin="a", stdin_base64="YQ=="),
        Exec(command="true", stdin_base64="?"),
        Exec(command="true", user="4294967295"),
        Exec(argv=["/no/such/program"]),
    ],
    ids=str,
)
def test_bad_requests(kit: Kit, sandbox: Sandbox, request_: Exec) -> None:
    with refused(Code.INVALID):
        kit.engine.execute(ADMIN, sandbox.id, request_)


def test_an_unknown_sandbox(kit: Kit) -> None:
    with refused(Code.NOT_FOUND):
        kit.engine.execute(ADMIN, "sbnothing", Exec(command="true"))


def test_a_command_over_its_time_is_killed_with_its_children(kit: Kit, sandbox: Sandbox) -> None:
    result = run(kit, sandbox, "sleep 1000 & echo started; sleep 1000", timeout_seconds=0.3)
    assert result.timed_out
    assert (result.exit_code, result.signal) == (None, 9)
    assert result.stdout.text == "started\n"


def test_input_arrives_whole_and_ends(kit: Kit, sandbox: Sandbox) -> None:
    data = os.urandom(1 << 20).hex()
    result = run(kit, sandbox, "sha256sum", stdin=data)
    assert result.stdout.text.split()[0] == hashlib.sha256(data.encode()).hexdigest()
    assert run(kit, sandbox, "cat", stdin_base64="/w==").stdout.base64 == "/w=="
    assert run(kit, sandbox, "cat").stdout.text == ""


def test_a_command_that_does_not_read_its_input_ends_all_the_same(kit: Kit, sandbox: Sandbox) -> None:
    assert run(kit, sandbox, "true", stdin="x" * 1_000_000).exit_code == 0


def test_nothing_is_lost_when_a_command_ends_right_after_its_last_byte(kit: Kit, sandbox: Sandbox) -> None:
    result = run(kit, sandbox, "head -c 8388608 /dev/zero | tr '\\0' x")
    assert result.stdout.size == 8_388_608
    assert result.stdout.text == "x" * 8_388_608


def test_output_over_the_bound_is_counted_not_kept(tmp_path: Path) -> None:
    kit = Kit(tmp_path, exec_output_bytes=10)
    result = run(kit, kit.sandbox(), "head -c 5000000 /dev/zero | tr '\\0' x")
    assert result.stdout.text == "xxxxxxxxxx[truncated 4999990 bytes]"
    kit.engine.close()


def test_a_child_that_holds_the_pipes_does_not_delay_the_reply(kit: Kit, sandbox: Sandbox) -> None:
    result = run(kit, sandbox, "sleep 1000 & echo now")
    assert result.stdout.text == "now\n"
    assert result.duration_ms < 60_000


def test_without_a_daemon_nothing_stays_behind(kit: Kit, sandbox: Sandbox) -> None:
    run(kit, sandbox, "sleep 1000 & echo now")
    assert not any(instance.alive() for instance in kit.plain.instances)


def test_under_a_daemon_background_processes_live_on_in_one_execution(tmp_path: Path) -> None:
    kit = Kit(tmp_path, persistent=True)
    sandbox = kit.sandbox()
    first = run(kit, sandbox, "sleep 1000 & echo $!")
    assert run(kit, sandbox, f"kill -0 {first.stdout.text.strip()}").exit_code == 0
    assert len(kit.plain.instances) == 1
    assert kit.engine.health().running == 1
    kit.engine.close()
    assert not kit.plain.instances[0].alive()


def test_an_execution_that_ended_on_its_own_is_started_again(tmp_path: Path) -> None:
    kit = Kit(tmp_path, persistent=True)
    sandbox = kit.sandbox()
    run(kit, sandbox, "true")
    kit.plain.instances[0].kill()
    assert run(kit, sandbox, "echo again").stdout.text == "again\n"
    kit.engine.close()


def test_the_environment_has_defaults_and_the_request_goes_last(kit: Kit) -> None:
    sandbox = kit.sandbox(environment={"A": "sandbox", "B": "sandbox"})
    result = run(kit, sandbox, "echo $A $B $HOME $LANG $USER", environment={"B": "request"})
    assert result.stdout.text.split()[:4] == ["sandbox", "request", "/home/user", "C.UTF-8"]


def test_a_directory_below_the_workspace(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "d").mkdir()
    assert run(kit, sandbox, "pwd", cwd="/work/d").stdout.text.strip().endswith("/d")


def test_streams_of_the_caller_carry_everything(kit: Kit, sandbox: Sandbox) -> None:
    running = kit.engine.start_exec(ADMIN, sandbox.id, Exec(command="cat; echo end >&2"))
    assert running.stdin is not None and running.stdout is not None and running.stderr is not None
    data = os.urandom(1 << 20)

    def feed(descriptor: int) -> None:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)

    feeder = threading.Thread(target=feed, args=(running.stdin,))
    feeder.start()
    with os.fdopen(running.stdout, "rb") as stream:
        assert stream.read() == data
    with os.fdopen(running.stderr, "rb") as stream:
        assert stream.read() == b"end\n"
    feeder.join()
    ended = running.wait()
    running.close()
    assert ended is not None
    assert (ended.exit_code, ended.timed_out) == (0, False)


def test_a_streamed_command_over_its_time_is_killed_by_its_wait(kit: Kit, sandbox: Sandbox) -> None:
    running = kit.engine.start_exec(ADMIN, sandbox.id, Exec(command="sleep 1000", timeout_seconds=0.2))
    assert running.wait(0) is None
    ended = running.wait()
    assert ended is not None
    assert ended.timed_out
    for end in (running.stdin, running.stdout, running.stderr):
        assert end is not None
        os.close(end)
    running.close()


def test_closing_kills_what_was_not_waited_for(kit: Kit, sandbox: Sandbox) -> None:
    running = kit.engine.start_exec(ADMIN, sandbox.id, Exec(command="sleep 1000"))
    for end in (running.stdin, running.stdout, running.stderr):
        assert end is not None
        os.close(end)
    running.close()
    assert not any(instance.alive() for instance in kit.plain.instances)


def test_commands_are_audited_before_they_run(kit: Kit, sandbox: Sandbox) -> None:
    run(kit, sandbox, "true")
    assert kit.events() == ["sandbox.exec"]


def test_descriptors_do_not_leak(kit: Kit, sandbox: Sandbox) -> None:
    run(kit, sandbox, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(kit, sandbox, "echo x", stdin="y")
    assert len(os.listdir("/proc/self/fd")) <= before
