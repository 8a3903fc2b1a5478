"""The program itself: help, global options, how it ends, what it loads, and its daemon."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from flux.cli.errors import EXIT_CODES
from flux.cli.main import root
from flux.core.errors import Code
from tests.cli.conftest import Program

HEAVY = (
    "anyio",
    "asyncio",
    "http.client",
    "prometheus_client",
    "rich",
    "ssl",
    "starlette",
    "structlog",
    "uvicorn",
    "websockets",
)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


EVERY = dict(commands(root))


def test_every_command_and_option_says_what_it_does() -> None:
    silent = [path for path, command in EVERY.items() if not command.help or not command.help.strip()]
    silent += [
        (*path, parameter.name or "")
        for path, command in EVERY.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert silent == []


def test_the_commands_of_the_specification_are_there() -> None:
    sandbox = (
        "create list get rm exec shell cp baseline diff dry-run speculate changesets changeset approve reject apply"
    )
    wanted = {("sandbox", name) for name in f"{sandbox} revert rerun export compare wait".split()}
    wanted |= {("audit",), ("events",), ("doctor",), ("keys", "create"), ("keys", "list"), ("keys", "revoke")}
    wanted |= {("daemon", "start"), ("daemon", "stop"), ("daemon", "status")}
    assert wanted <= set(EVERY)


def test_help_needs_no_state(tmp_path: Path) -> None:
    program = Program(["--state-dir", str(tmp_path / "state")], tmp_path)
    for words in ((), ("sandbox",), ("sandbox", "speculate"), ("keys", "create")):
        done = program.run(*words, "--help")
        assert done.code == 0
        assert b"Usage: fluxctl" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_kind_of_error_has_an_exit_code_of_its_own_that_commands_rarely_use() -> None:
    assert set(EXIT_CODES) == set(Code)
    assert len(set(EXIT_CODES.values())) == len(Code)
    assert all(64 <= code <= 78 for code in EXIT_CODES.values())


def test_the_version_is_told(tmp_path: Path) -> None:
    assert Program([], tmp_path).run("--version").stdout.startswith(b"fluxctl ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(tmp_path: Path, shell: str) -> None:
    assert b"_FLUXCTL_COMPLETE" in Program([], tmp_path).run("completion", shell).stdout


def test_state_directory_and_server_exclude_each_other(tmp_path: Path) -> None:
    program = Program(["--state-dir", str(tmp_path), "--server", "http://127.0.0.1:1"], tmp_path)
    assert "exclude each other" in program.refused(64, "sandbox", "list")["message"]


def test_what_a_command_line_lacks_is_told_in_one_line(embedded_program: Program) -> None:
    assert "choose from: bash, zsh, fish;" in embedded_program.refused(64, "completion")["message"].lower()
    assert "two changesets or more" in embedded_program.refused(64, "sandbox", "compare", "sb1", "cs1")["message"]


def test_a_flag_wins_over_the_variable_for_the_other_way(tmp_path: Path) -> None:
    program = Program(["--state-dir", str(tmp_path / "state")], tmp_path, FLUX_SERVER="http://127.0.0.1:1")
    assert program("sandbox", "list")["items"] == []


@pytest.mark.parametrize(
    ("url", "code"), [("http://127.0.0.1:1", 69), ("unix:/no/such/socket", 69), ("ftp://x", 64), ("nonsense", 64)]
)
def test_a_server_that_is_not_there_is_an_error(tmp_path: Path, url: str, code: int) -> None:
    Program(["--server", url, "--token", "x"], tmp_path).refused(code, "sandbox", "list")


def test_a_configuration_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "flux.toml").write_text("[sandbx]\n")
    options = ["--state-dir", str(tmp_path / "state"), "--config", str(tmp_path / "flux.toml")]
    error = Program(options, tmp_path).refused(64, "sandbox", "list")
    assert "the nearest known key is sandbox" in error["message"]
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Program(["--state-dir", str(tmp_path / "file")], tmp_path).refused(64, "sandbox", "list")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    Program(["--state-dir", str(tmp_path / "open")], tmp_path).refused(77, "sandbox", "list")


def test_json_is_asked_for_before_the_group_or_after_the_command(tmp_path: Path) -> None:
    program = Program(["--state-dir", str(tmp_path / "state")], tmp_path)
    for words in (("--json", "sandbox", "get", "sbnone"), ("sandbox", "get", "sbnone", "--json")):
        assert json.loads(program.run(*words).stderr)["code"] == "not_found"
    assert program.run("sandbox", "get", "sbnone").stderr.startswith("fluxctl: cannot ")


def test_a_reader_that_goes_away_is_no_defect(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "flux.app.fluxctl", "--state-dir", str(tmp_path / "state"), "sandbox", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + 13, b"")


def test_a_reply_that_cannot_be_printed_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flux.app.fluxctl", "--state-dir", str(tmp_path / "state"), "sandbox", "list"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == EXIT_CODES[Code.UNKNOWN_OUTCOME]
    assert done.stderr.startswith("fluxctl: cannot print the reply: no space left on device")


def test_closed_standard_streams_never_become_files_of_the_state(embedded_program: Program, workspace: Path) -> None:
    made = embedded_program("sandbox", "create", "--workspace", str(workspace))
    program = shlex.join([sys.executable, "-m", "flux.app.fluxctl", *embedded_program.options])
    line = f"{program} sandbox exec {made['id']} -- 'cat; echo said; echo cried >&2' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], env=embedded_program.environment, check=False).returncode == 0
    assert embedded_program("sandbox", "get", made["id"]) == made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_and_what_it_started(
    embedded_program: Program, workspace: Path, number: signal.Signals
) -> None:
    made = embedded_program("sandbox", "create", "--workspace", str(workspace))
    marker = f"{1000 + os.getpid()}.{int(number)}"
    with embedded_program.started("sandbox", "exec", made["id"], "--", f"echo started; sleep {marker}") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"started\n"
        running.send_signal(number)
    assert running.returncode == 128 + number
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in _content(path)]
    assert embedded_program("sandbox", "rm", made["id"])["deleted"] is True


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


def test_speculating_loads_nothing_heavy(tmp_path: Path, workspace: Path) -> None:
    state = str(tmp_path / "state")
    made = Program(["--state-dir", state], tmp_path)("sandbox", "create", "--workspace", str(workspace))
    script = (
        "import sys\n"
        "from flux.app.clock import SystemClock\n"
        "from flux.app.open import open_session\n"
        "from flux.cli.main import run\n"
        "code = run(sys.argv[1:], open_session, SystemClock())\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    words = ["--state-dir", state, "sandbox", "speculate", made["id"], "--", "echo x > new"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split("\n"))
    assert "flux.engine.engine" in loaded
    assert sorted(loaded.intersection(HEAVY)) == []


class Terminal:
    """The program with a terminal for all its streams."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, *words: str) -> tuple[int, str]:
        master, terminal = pty.openpty()
        command = [sys.executable, "-m", "flux.app.fluxctl", *self.program.options, *words]
        environment = {**self.program.environment, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}
        process = subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        parts = []
        try:
            while data := os.read(master, 65536):
                parts.append(data)
        except OSError:
            pass
        os.close(master)
        return process.wait(), b"".join(parts).decode("utf-8")


class TestOnATerminal:
    def test_a_person_sees_words_and_the_next_step(self, embedded_program: Program, workspace: Path) -> None:
        terminal = Terminal(embedded_program)
        code, text = terminal.run("sandbox", "create", "--workspace", str(workspace), "--name", "seen")
        assert code == 0
        assert "fluxctl --state-dir" in text and "sandbox speculate seen -- CMD..." in text
        code, text = terminal.run("sandbox", "speculate", "seen", "--", "rm a.txt; echo new > '[bold]x\x1b'")
        assert code == 0
        assert "Deleted: 1 entry, 4 B" in text
        assert "+ /[bold]x\\x1b" in text
        assert "sandbox approve" in text
        for words in (
            ("sandbox", "list"),
            ("sandbox", "get", "seen"),
            ("sandbox", "changesets", "seen"),
            ("audit",),
            ("keys", "list"),
        ):
            code, text = terminal.run(*words)
            assert code == 0
            assert not text.startswith(("{", "["))

    def test_the_doctor_speaks_to_people(self, embedded_program: Program) -> None:
        code, text = Terminal(embedded_program).run("doctor")
        assert code in (0, 69)
        assert "ok  " in text

    def test_json_can_still_be_asked_for(self, embedded_program: Program) -> None:
        code, text = Terminal(embedded_program).run("sandbox", "list", "--json")
        assert code == 0
        assert "items" in json.loads(text)

    def test_errors_are_escaped(self, embedded_program: Program) -> None:
        code, text = Terminal(embedded_program).run("sandbox", "get", "\x1b[31mx")
        assert code == 66
        assert "\x1b[31m" not in text

    def test_a_command_gets_a_terminal_of_its_own(self, flux: Program, sandbox: str) -> None:
        code, text = Terminal(flux).run("sandbox", "exec", "-it", sandbox, "--", "test -t 0 && test -t 1 && echo yes")
        assert (code, "yes" in text) == (0, True)


class TestDaemon:
    def test_a_local_command_finds_it(self, daemon: tuple[Program, Any], workspace: Path) -> None:
        local, started = daemon
        made = local("sandbox", "create", "--workspace", str(workspace))
        remote = Program(["--server", f"unix:{started['state_directory']}/socket"], workspace.parent)
        assert remote("sandbox", "get", made["id"]) == made
        assert local("sandbox", "rm", made["id"])["deleted"] is True

    def test_status_tells_where_it_is(self, daemon: tuple[Program, Any], tmp_path: Path) -> None:
        local, started = daemon
        assert local("daemon", "status") == started
        assert started["url"].startswith("http://127.0.0.1:")
        assert os.path.exists(started["log"])
        none = Program(["--state-dir", str(tmp_path / "other")], tmp_path).run("daemon", "status")
        assert (none.code, none.reply()["running"]) == (1, False)

    def test_there_is_one_per_state_directory(self, daemon: tuple[Program, Any]) -> None:
        local, started = daemon
        error = local.refused(73, "daemon", "start", "--listen", "127.0.0.1:0")
        assert error["details"]["pid"] == started["pid"]
        command = [sys.executable, "-m", "flux.app.fluxd", *local.options, "--listen", "127.0.0.1:0"]
        second = subprocess.run(command, env=local.environment, capture_output=True, text=True, check=False)
        assert second.returncode == 69
        assert f"process {started['pid']}" in second.stderr

    def test_one_that_cannot_start_says_why(self, tmp_path: Path) -> None:
        program = Program(["--state-dir", str(tmp_path / "state")], tmp_path)
        error = program.refused(69, "daemon", "start", "--listen", "nowhere")
        assert "cannot start the daemon" in error["message"]
        assert "nowhere" in error["message"]

    def test_nothing_is_stopped_where_none_runs(self, tmp_path: Path) -> None:
        Program(["--state-dir", str(tmp_path / "state")], tmp_path).refused(66, "daemon", "stop")

    @pytest.mark.parametrize("token", ["wrong", ""])
    def test_a_wrong_token_is_refused(self, daemon: tuple[Program, Any], tmp_path: Path, token: str) -> None:
        _, started = daemon
        options = ["--server", started["url"], *(["--token", token] if token else [])]
        error = Program(options, tmp_path).refused(67, "sandbox", "list")
        assert error["code"] == "unauthenticated"

    def test_a_key_does_what_its_role_allows(self, daemon: tuple[Program, Any], workspace: Path) -> None:
        local, started = daemon
        made = local("keys", "create", "helper", "--role", "agent")
        agent = Program(["--server", started["url"], "--token", made["key"]], workspace.parent)
        agent.refused(77, "sandbox", "create", "--workspace", str(workspace))
        own = agent("sandbox", "create")["id"]
        changeset = agent("sandbox", "speculate", own, "--", "echo x > new")["id"]
        assert agent.refused(77, "sandbox", "approve", own, changeset)["code"] == "denied"
        assert [key["name"] for key in local("keys", "list")["items"]].count("helper") == 1
        local("keys", "revoke", "helper")
        agent.refused(67, "sandbox", "list")
        local("sandbox", "rm", own)

    def test_it_starts_again_where_it_was_stopped(self, tmp_path: Path, workspace: Path) -> None:
        program = Program(["--state-dir", str(tmp_path / "state")], tmp_path)
        made = program("sandbox", "create", "--workspace", str(workspace))
        for _ in range(2):
            program("daemon", "start", "--listen", "127.0.0.1:0")
            assert program("sandbox", "get", made["id"])["id"] == made["id"]
            assert program("daemon", "stop")["running"] is False
        assert program("sandbox", "get", made["id"])["id"] == made["id"]
