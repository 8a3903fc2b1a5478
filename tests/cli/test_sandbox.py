"""Sandboxes from the command line, the same by itself and through a daemon (spec: sandboxes)."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Program


def test_a_sandbox_is_made_found_listed_and_removed(flux: Program, workspace: Path) -> None:
    made = flux("sandbox", "create", "--workspace", str(workspace), "--name", "project", "--env", "A=b=c", "--json")
    assert made["id"].isalnum() and made["id"].islower()
    assert (made["name"], made["workspace"], made["environment"]) == ("project", str(workspace), {"A": "b=c"})
    assert flux("sandbox", "get", "project") == flux("sandbox", "get", made["id"])
    assert made["id"] in [item["id"] for item in flux("sandbox", "list")["items"]]
    assert flux("sandbox", "rm", "project") == {"id": made["id"], "deleted": True}
    assert flux.refused(66, "sandbox", "get", "project")["code"] == "not_found"
    assert (workspace / "a.txt").read_text() == "one\n"


def test_a_life_is_in_the_audit_log_once_and_by_whom(flux: Program, workspace: Path) -> None:
    made = flux("sandbox", "create", "--workspace", str(workspace), "--name", "recorded")["id"]
    for verb in ("pause", "resume", "rm"):
        flux("sandbox", verb, made)
    lines = flux("audit", "--sandbox", made)["items"]
    assert [line["event"] for line in lines] == ["sandbox.create", "sandbox.pause", "sandbox.resume", "sandbox.delete"]
    assert len({line["actor"] for line in lines}) == 1
    assert "reason" not in lines[-1].get("details", lines[-1])


def test_a_name_is_taken_once(flux: Program, workspace: Path) -> None:
    made = flux("sandbox", "create", "--workspace", str(workspace), "--name", "twice")
    assert (
        flux.refused(73, "sandbox", "create", "--workspace", str(workspace), "--name", "twice")["code"]
        == "already_exists"
    )
    flux("sandbox", "rm", made["id"])


def test_an_idempotency_key_gives_the_same_sandbox_again(flux: Program, workspace: Path) -> None:
    create = ("sandbox", "create", "--workspace", str(workspace), "--idempotency-key", f"key-{os.urandom(8).hex()}")
    made = flux(*create)
    assert flux(*create)["id"] == made["id"]
    assert flux.run(*create, "--name", "other").code == 73
    flux("sandbox", "rm", made["id"])


def test_a_relative_workspace_is_meant_from_here(flux: Program, workspace: Path) -> None:
    done = flux.run("sandbox", "create", "--workspace", "dir", cwd=workspace)
    assert done.reply()["workspace"] == str(workspace / "dir")
    flux("sandbox", "rm", done.reply()["id"])


@pytest.mark.parametrize("place", ["absent", "a.txt", "/", ""])
def test_a_workspace_that_cannot_be_one_is_refused(flux: Program, workspace: Path, place: str) -> None:
    path = place if place in ("/", "") else str(workspace / place)
    assert flux.refused(64, "sandbox", "create", "--workspace", path)["code"] == "invalid"


@pytest.mark.parametrize(
    "words",
    [
        ("--net-port", "0"),
        ("--net-port", "x"),
        ("--mount", "/usr"),
        ("--mount", "/usr:/opt:rw"),
        ("--mount", "/usr:opt:ro"),
        ("--env", "A"),
        ("--env", "=b"),
        ("--kind", "nothing"),
        ("--memory-mib", "0"),
        ("--no-such-option",),
        ("surplus",),
    ],
)
def test_an_option_that_cannot_be_understood_is_refused(flux: Program, workspace: Path, words: tuple[str, ...]) -> None:
    assert flux.refused(64, "sandbox", "create", "--workspace", str(workspace), *words)["code"] == "invalid"


class TestExec:
    def test_ends_with_the_exit_code_of_the_command(self, flux: Program, sandbox: str) -> None:
        done = flux.run("sandbox", "exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (done.code, done.stdout, done.stderr) == (7, b"out\n", "err\n")

    def test_ends_with_128_and_the_signal(self, flux: Program, sandbox: str) -> None:
        assert flux.run("sandbox", "exec", sandbox, "--", "kill -TERM $$").code == 128 + 15

    def test_one_word_is_a_line_for_the_shell_and_several_are_arguments(self, flux: Program, sandbox: str) -> None:
        assert flux.run("sandbox", "exec", sandbox, "--", "echo $((1+1))").stdout == b"2\n"
        assert (
            flux.run("sandbox", "exec", sandbox, "--", "echo", "$((1+1))", "--json", "-x").stdout
            == b"$((1+1)) --json -x\n"
        )

    def test_passes_stdin_through(self, flux: Program, sandbox: str) -> None:
        data = bytes(range(256)) * 4096
        assert flux.run("sandbox", "exec", "-i", sandbox, "--", "cat", stdin=data).stdout == data
        assert flux.run("sandbox", "exec", sandbox, "--", "cat", stdin=b"piped").stdout == b"piped"

    def test_takes_environment_and_directory(self, flux: Program, sandbox: str) -> None:
        words = ("--env", "A=x y", "--cwd", "/work/dir", "--", "echo $A; pwd; ls")
        assert flux.run("sandbox", "exec", sandbox, *words).stdout == b"x y\n/work/dir\nb.txt\n"

    def test_a_time_out_ends_it_and_is_told(self, flux: Program, sandbox: str) -> None:
        done = flux.run("sandbox", "exec", sandbox, "--timeout", "0.2", "--", "sleep", "1000")
        assert done.code == 124
        assert "its time-out" in done.stderr

    def test_json_captures_the_output(self, flux: Program, sandbox: str) -> None:
        done = flux.run("sandbox", "exec", "--json", sandbox, "--", "cat; printf '\\377'; exit 3", stdin=b"in ")
        reply = done.reply()
        assert (done.code, reply["exit_code"], reply["signal"], reply["timed_out"]) == (3, 3, None, False)
        assert base64.b64decode(reply["stdout_base64"]) == b"in \xff"

    def test_a_terminal_needs_a_terminal(self, flux: Program, sandbox: str) -> None:
        assert "stdin is not one" in flux.refused(64, "sandbox", "exec", "-t", sandbox, "--", "true")["message"]

    def test_options_of_the_command_belong_after_the_dashes(self, flux: Program, sandbox: str) -> None:
        assert "comes after --" in flux.refused(64, "sandbox", "exec", sandbox, "ls", "-l")["message"]

    def test_a_command_is_needed(self, flux: Program, sandbox: str) -> None:
        assert flux.refused(64, "sandbox", "exec", sandbox)["code"] == "invalid"
        assert flux.refused(64, "sandbox", "exec", sandbox, "--")["code"] == "invalid"

    def test_a_shell_reads_what_it_is_given(self, flux: Program, sandbox: str) -> None:
        done = flux.run("sandbox", "shell", sandbox, stdin=b"cd dir && ls; exit 4\n")
        assert (done.code, done.stdout) == (4, b"b.txt\n")

    def test_a_sandbox_that_is_not_there(self, flux: Program) -> None:
        assert flux.refused(66, "sandbox", "exec", "sbnone", "--", "true")["code"] == "not_found"


class TestCopy:
    def test_in_and_out_keep_bytes_and_mode(self, flux: Program, sandbox: str, workspace: Path, tmp_path: Path) -> None:
        data = bytes(range(256)) * 1000
        source = tmp_path / "tool"
        source.write_bytes(data)
        source.chmod(0o755)
        assert flux("sandbox", "cp", str(source), f"{sandbox}:/work/new/tool")["size"] == len(data)
        copied = workspace / "new" / "tool"
        assert (copied.read_bytes(), stat.S_IMODE(copied.stat().st_mode)) == (data, 0o755)
        assert flux("sandbox", "cp", f"{sandbox}:/work/new/tool", str(tmp_path / "back"))["size"] == len(data)
        assert (tmp_path / "back").read_bytes() == data

    def test_directories_as_targets_take_the_name(
        self, flux: Program, sandbox: str, workspace: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("x")
        flux("sandbox", "cp", str(tmp_path / "f"), f"{sandbox}:/work/dir/")
        assert (workspace / "dir" / "f").read_text() == "x"
        flux("sandbox", "cp", f"{sandbox}:/work/a.txt", str(tmp_path))
        assert (tmp_path / "a.txt").read_text() == "one\n"

    def test_standard_streams(self, flux: Program, sandbox: str, workspace: Path) -> None:
        flux("sandbox", "cp", "-", f"{sandbox}:/work/piped", stdin=b"\x00\xff")
        assert (workspace / "piped").read_bytes() == b"\x00\xff"
        assert flux.run("sandbox", "cp", f"{sandbox}:/work/piped", "-").stdout == b"\x00\xff"

    def test_nothing_is_left_of_a_copy_that_fails(self, flux: Program, sandbox: str, tmp_path: Path) -> None:
        target = tmp_path / "out"
        target.mkdir()
        assert flux.run("sandbox", "cp", f"{sandbox}:/work/absent", str(target / "f")).code == 66
        assert list(target.iterdir()) == []

    @pytest.mark.parametrize(
        ("source", "target", "code"),
        [
            ("/etc/hostname", "/tmp/x", 64),
            ("SB:/work/a.txt", "SB:/work/b", 64),
            ("SB:/work/a.txt", "/no/such/directory/f", 66),
            ("/no/such/file", "SB:/work/b", 66),
            ("/usr", "SB:/work/b", 64),
            ("-", "SB:/work/dir/", 64),
            ("SB:/work/dir", "/dev/null", 64),
        ],
    )
    def test_what_cannot_be_copied_is_refused(
        self, flux: Program, sandbox: str, source: str, target: str, code: int
    ) -> None:
        flux.refused(code, "sandbox", "cp", source.replace("SB", sandbox), target.replace("SB", sandbox))


def test_a_baseline_shows_what_changed_since(flux: Program, sandbox: str, workspace: Path) -> None:
    assert flux.refused(75, "sandbox", "diff", sandbox)["code"] == "conflict"
    assert flux("sandbox", "baseline", sandbox)["entries"] >= 3
    (workspace / "a.txt").write_text("ONE\n")
    (workspace / "dir" / "b.txt").unlink()
    (workspace / "new").write_text("")
    found = flux("sandbox", "diff", sandbox)
    assert [change["path"] for change in found["changes"]["modified"]] == ["/a.txt"]
    assert [change["path"] for change in found["changes"]["deleted"]] == ["/dir/b.txt"]
    assert [change["path"] for change in found["changes"]["added"]] == ["/new"]
    assert flux("sandbox", "diff", sandbox, "--path", "/dir")["counts"]["added"] == 0
    assert flux.refused(64, "sandbox", "diff", sandbox, "--path", "dir")["code"] == "invalid"


def test_a_dry_run_reports_and_keeps_nothing(flux: Program, sandbox: str, workspace: Path) -> None:
    done = flux.run("sandbox", "dry-run", sandbox, "--exit-code", "--", "echo x > new; echo said; exit 5")
    reply = done.reply()
    assert (done.code, reply["exit_code"], reply["stdout"], reply["counts"]["added"]) == (5, 5, "said\n", 1)
    assert not (workspace / "new").exists()
    assert flux("sandbox", "changesets", sandbox)["items"] == []


def test_the_doctor_says_for_each_thing_whether_it_works(flux: Program) -> None:
    done = flux.run("doctor")
    reply = done.reply()
    assert done.code == (0 if reply["ok"] else 69)
    assert reply["ok"] == all(check["ok"] for check in reply["checks"] if check.get("required", True))
    assert [check["subject"] for check in reply["checks"] if not check["ok"] and not check["detail"]] == []
    assert len(reply["checks"]) > 3
