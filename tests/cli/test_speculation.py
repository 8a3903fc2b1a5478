"""Speculation from the command line, the same by itself and through a daemon (spec: speculation)."""

from __future__ import annotations

import io
import json
import os
import select
import tarfile
from pathlib import Path
from typing import Any

import pytest

from flux.core.changeset import State
from tests.cli.conftest import Program


def speculate(flux: Program, sandbox: str, line: str, *options: str) -> dict[str, Any]:
    reply: dict[str, Any] = flux("sandbox", "speculate", sandbox, *options, "--", line)
    return reply


def paths(changeset: dict[str, Any], kind: str) -> list[str]:
    return [change["path"] for change in changeset["changes"][kind]]


def test_a_changeset_comes_back_and_the_workspace_is_untouched(flux: Program, sandbox: str, workspace: Path) -> None:
    made = speculate(flux, sandbox, "echo new > n; echo ONE > a.txt; rm dir/b.txt; echo said; echo cried >&2; exit 3")
    assert (made["state"], made["exit_code"], made["stdout"], made["stderr"]) == ("pending", 3, "said\n", "cried\n")
    assert (paths(made, "added"), paths(made, "modified"), paths(made, "deleted")) == (
        ["/n"],
        ["/a.txt"],
        ["/dir/b.txt"],
    )
    assert (made["sandbox_id"], made["run_via"]) == (sandbox, "workspace-copy")
    assert sorted(path.name for path in workspace.rglob("*")) == ["a.txt", "b.txt", "dir"]
    assert flux("sandbox", "changeset", sandbox, made["id"]) == made


def test_the_whole_way_to_applied_and_back(flux: Program, sandbox: str, workspace: Path) -> None:
    made = speculate(flux, sandbox, "echo ONE > a.txt")
    names = (sandbox, made["id"])
    approved = flux("sandbox", "approve", *names, "--digest", made["digest"], "--comment", "fine")
    assert (approved["state"], approved["comment"]) == ("approved", "fine")
    assert (workspace / "a.txt").read_text() == "one\n"
    assert flux("sandbox", "apply", *names)["state"] == "applied"
    assert (workspace / "a.txt").read_text() == "ONE\n"
    inverse = flux("sandbox", "revert", *names)
    assert (inverse["state"], inverse["reverts"]) == ("pending", made["id"])
    flux("sandbox", "approve", sandbox, inverse["id"])
    flux("sandbox", "apply", sandbox, inverse["id"])
    assert (workspace / "a.txt").read_text() == "one\n"
    listed = flux("sandbox", "changesets", sandbox)["items"]
    assert [(item["id"], item["state"]) for item in listed] == [(inverse["id"], "applied"), (made["id"], "applied")]


def test_the_exit_code_is_of_the_changeset_unless_asked_for(flux: Program, sandbox: str) -> None:
    assert flux.run("sandbox", "speculate", sandbox, "--", "exit 3").code == 0
    assert flux.run("sandbox", "speculate", sandbox, "--exit-code", "--", "exit 3").code == 3
    assert flux.run("sandbox", "speculate", sandbox, "--exit-code", "--", "kill -9 $$").code == 137
    timed_out = flux.run("sandbox", "speculate", sandbox, "--exit-code", "--timeout", "0.2", "--", "sleep 1000")
    assert timed_out.code == 124
    assert timed_out.reply()["timed_out"] is True


def test_several_words_are_a_program_and_its_arguments(flux: Program, sandbox: str) -> None:
    made = flux("sandbox", "speculate", sandbox, "--", "printf", "%s|", "a b", "$HOME", "--json")
    assert made["stdout"] == "a b|$HOME|--json|"
    assert made["argv"] == ["printf", "%s|", "a b", "$HOME", "--json"]


def test_options_reach_the_run(flux: Program, sandbox: str) -> None:
    options = ("--path", "/dir", "--ttl-seconds", "60", "--env", "A=1", "--cwd", "/work/dir", "--network", "none")
    more = ("--copy-engine", "copy", "--conflict-scope", "touched")
    made = speculate(flux, sandbox, "echo $A > here; echo x > ../there; pwd", *options, *more)
    assert made["stdout"] == "/work/dir\n"
    assert paths(made, "added") == ["/dir/here"]
    assert (made["paths"], made["copy_engine"], made["conflict_scope"]) == (["/dir"], "copy", "touched")
    assert made["side_effects"]["egress"] == "blocked"


def test_a_stack_stands_on_its_parent(flux: Program, sandbox: str) -> None:
    first = speculate(flux, sandbox, "echo 1 > first")
    second = speculate(flux, sandbox, "cat first; echo 2 > second", "--from", first["id"])
    assert (second["parent"], second["stdout"], paths(second, "added")) == (first["id"], "1\n", ["/second"])


def test_an_apply_is_refused_when_something_changed_and_says_what(flux: Program, sandbox: str, workspace: Path) -> None:
    made = speculate(flux, sandbox, "echo ONE > a.txt")
    flux("sandbox", "approve", sandbox, made["id"])
    (workspace / "a.txt").write_text("newer\n")
    error = flux.refused(75, "sandbox", "apply", sandbox, made["id"])
    assert error["code"] == "conflict"
    assert error["details"]["conflicts"][0]["path"] == "/a.txt"
    assert (workspace / "a.txt").read_text() == "newer\n"
    plain = flux.run("sandbox", "apply", sandbox, made["id"])
    assert "\n  /a.txt: " in plain.stderr
    again = flux("sandbox", "rerun", sandbox, made["id"])
    assert (again["state"], again["supersedes"], again["command"]) == ("pending", made["id"], made["command"])


def test_another_digest_than_the_reviewed_one_is_refused(flux: Program, sandbox: str) -> None:
    made = speculate(flux, sandbox, "echo x > n")
    other = "sha256:" + "0" * 64
    assert flux.refused(75, "sandbox", "approve", sandbox, made["id"], "--digest", other)["code"] == "conflict"
    assert flux("sandbox", "changeset", sandbox, made["id"])["state"] == State.PENDING


def test_a_decision_is_made_once(flux: Program, sandbox: str) -> None:
    made = speculate(flux, sandbox, "echo x > n")
    flux.refused(76, "sandbox", "apply", sandbox, made["id"])
    assert flux("sandbox", "reject", sandbox, made["id"], "--comment", "no")["state"] == "rejected"
    for verb in ("reject", "approve", "apply", "revert"):
        error = flux.refused(76, "sandbox", verb, sandbox, made["id"])
        assert error["code"] == "illegal_state"
        assert "rejected" in error["message"]


def test_a_part_can_be_approved(flux: Program, sandbox: str, workspace: Path) -> None:
    made = speculate(flux, sandbox, "mkdir new; echo 1 > new/a; echo 2 > b")
    approved = flux("sandbox", "approve", sandbox, made["id"], "--only", "/new/a")
    assert paths(approved, "added") == ["/new", "/new/a"]
    assert made["side_effects"]["replayable"] == ["3 file changes under /work"]
    assert approved["side_effects"]["replayable"] == ["2 file changes under /work"]
    flux("sandbox", "apply", sandbox, made["id"])
    assert (workspace / "new" / "a").exists()
    assert not (workspace / "b").exists()


def test_contents_diffs_and_exports(flux: Program, sandbox: str, tmp_path: Path) -> None:
    made = speculate(flux, sandbox, "echo ONE > a.txt; printf '\\000\\001' > bin")
    names = (sandbox, made["id"])
    assert flux.run("sandbox", "changeset", *names, "--file", "/a.txt").stdout == b"ONE\n"
    assert flux.run("sandbox", "changeset", *names, "--file", "/bin").stdout == b"\x00\x01"
    flux.refused(66, "sandbox", "changeset", *names, "--file", "/absent")
    diffs = flux("sandbox", "changeset", *names, "--diff")["diff"]
    assert "-one\n+ONE\n" in diffs[0]["text"]
    assert diffs[1]["text"] is None and "binary" in diffs[1]["note"]
    assert b"-one\n+ONE\n" in flux.run("sandbox", "export", *names).stdout
    flux.run("sandbox", "export", *names, "--tar", "-o", str(tmp_path / "out.tar"))
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "out.tar").read_bytes())) as archive:
        assert any(name.endswith("a.txt") for name in archive.getnames())
    assert flux.run("sandbox", "export", *names, "-o", "/no/such/place").code == 77


def test_changesets_are_compared_side_by_side(flux: Program, sandbox: str) -> None:
    first, second = (speculate(flux, sandbox, f"echo {number} > n") for number in (1, 2))
    found = flux("sandbox", "compare", sandbox, first["id"], second["id"])
    assert found["entries"][0]["kinds"] == {first["id"]: "added", second["id"]: "added"}
    assert found["entries"][0]["same"] is False
    flux.refused(64, "sandbox", "compare", sandbox, first["id"])


def test_waiting_ends_with_the_decision_or_with_the_time(flux: Program, sandbox: str) -> None:
    made = speculate(flux, sandbox, "echo x > n")
    undecided = flux.run("sandbox", "wait", sandbox, made["id"], "--timeout", "0.1")
    assert (undecided.code, undecided.reply()["state"]) == (124, "pending")
    flux("sandbox", "approve", sandbox, made["id"])
    assert flux("sandbox", "wait", sandbox, made["id"])["state"] == "approved"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (66, ("speculate", "sbnone", "--", "true")),
        (66, ("changesets", "sbnone")),
        (66, ("changeset", "SB", "csnone")),
        (66, ("approve", "SB", "csnone")),
        (66, ("apply", "SB", "../etc")),
        (64, ("speculate", "SB", "--path", "relative", "--", "true")),
        (64, ("speculate", "SB", "--path", "/a/../b", "--", "true")),
        (64, ("speculate", "SB", "--network", "full", "--", "true")),
        (64, ("speculate", "SB", "--copy-engine", "cp", "--", "true")),
        (64, ("speculate", "SB", "--timeout", "0", "--", "true")),
        (64, ("speculate", "SB", "--timeout", "soon", "--", "true")),
        (64, ("speculate", "SB")),
        (64, ("speculate",)),
        (66, ("speculate", "SB", "--from", "csnone", "--", "true")),
        (64, ("speculat", "SB")),
    ],
)
def test_what_cannot_be_done_is_refused(flux: Program, sandbox: str, code: int, words: tuple[str, ...]) -> None:
    flux.refused(code, "sandbox", *(sandbox if word == "SB" else word for word in words))


def test_names_that_are_no_text_travel_exactly(flux: Program, sandbox: str, workspace: Path) -> None:
    name = b"\x1b[31m\xff\n.txt"
    made = speculate(flux, sandbox, "echo x > \"$(printf '\\033[31m\\377\\n.txt')\"")
    change = made["changes"]["added"][0]
    assert "control_chars_in_name" in change["risks"]
    assert "path_base64" in change
    content = flux.run("sandbox", "changeset", sandbox, made["id"], "--file", "/" + os.fsdecode(name))
    assert content.stdout == b"x\n"
    flux("sandbox", "approve", sandbox, made["id"], "--only", "/" + os.fsdecode(name))
    flux("sandbox", "apply", sandbox, made["id"])
    assert name in os.listdir(os.fsencode(workspace))


def test_an_error_escapes_the_names_in_it(flux: Program) -> None:
    done = flux.run("sandbox", "get", "\x1b[31mx\xff")
    assert done.code == 66
    assert "\x1b" not in done.stderr


def test_what_was_decided_is_in_the_audit_log(flux: Program, sandbox: str) -> None:
    made = speculate(flux, sandbox, "echo x > n")
    flux("sandbox", "reject", sandbox, made["id"], "--comment", "no")
    lines = flux("audit", "--changeset", made["id"])["items"]
    assert [line["event"] for line in lines] == ["changeset.create", "changeset.rejected"]
    assert flux("audit", "--sandbox", sandbox, "--event", "changeset.rejected")["items"] == lines[1:]
    flux.refused(64, "audit", "--since", "yesterday")


def test_waiting_lets_others_decide(flux: Program, sandbox: str) -> None:
    made = speculate(flux, sandbox, "echo x > n")
    with flux.started("sandbox", "wait", sandbox, made["id"]) as waiting:
        flux("sandbox", "reject", sandbox, made["id"])
        output, _ = waiting.communicate()
    assert (waiting.returncode, json.loads(output)["state"]) == (0, "rejected")


def test_events_are_told_as_they_happen(flux: Program, sandbox: str) -> None:
    with flux.started("events", "--sandbox", sandbox) as following:
        try:
            assert following.stdout is not None
            # It follows from some moment on: act until it tells of an act.
            for _ in range(60):
                speculate(flux, sandbox, "true")
                if select.select([following.stdout], [], [], 0.2)[0]:
                    break
            line = json.loads(following.stdout.readline())
        finally:
            following.kill()
    assert (line["event"], line["sandbox_id"]) == ("changeset.create", sandbox)
