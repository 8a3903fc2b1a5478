"""How a changeset looks to its reviewer: what comes first, what is said, and that nothing from a sandbox is obeyed."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from flux.cli.show import changeset, tables, words

NOW = 1_700_000_000.0
HOSTILE = "a\x1b]0;owned\x07\x1b[31m[bold]b[/bold]\r\n\u202e.txt"


def side(kind: str = "file", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "mode": "0644", "uid": 0, "gid": 0, "size": 12, "mtime_ns": 0, **fields}


def reply(**fields: Any) -> dict[str, Any]:
    """Return a changeset as REST replies it, with nothing in it but ``fields``."""
    empty: dict[str, Any] = {
        "id": "cs1",
        "sandbox_id": "sb1",
        "state": "pending",
        "command": "make",
        "argv": None,
        "created_at": "2023-11-14T22:13:20.000Z",
        "expires_at": "2023-11-14T23:13:20.000Z",
        "run_via": "workspace-copy",
        "copy_engine": "overlay",
        "copy_engine_reason": None,
        "paths": ["/"],
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "duration_ms": 250,
        "stdout": "",
        "stderr": "",
        "changes": {"added": [], "modified": [], "deleted": [], "type_changed": [], "unchanged": 0},
        "unstaged": [],
        "skipped": [],
        "not_captured": [],
        "discarded": [],
        "warnings": [],
        "side_effects": {"egress": "blocked", "enforced": True, "observed": []},
        "revertible": True,
        "conflict_scope": "all",
        "digest": "sha256:abc",
        "base_changed_during_run": False,
        "base_changes": [],
    }
    return {**empty, **fields}


def shown(item: dict[str, Any], **more: Any) -> str:
    target = io.StringIO()
    console = Console(file=target, force_terminal=True, color_system=None, width=100, markup=False, soft_wrap=True)
    changeset.show(console, item, hint=lambda *typed: " ".join(("fluxctl", *typed)), now=NOW, **more)
    return target.getvalue()


def order(text: str, *parts: str) -> None:
    places = [text.index(part) for part in parts]
    assert places == sorted(places), parts


def test_risks_come_first_then_deletions_with_count_and_bytes_then_the_rest() -> None:
    changes = {
        "added": [{"path": "/bin/run", "after": side(mode="4755"), "risks": ["setuid"]}],
        "modified": [
            {"path": "/m", "before": side(), "after": side(mode="0600", size=2048), "attributes": ["content", "mode"]}
        ],
        "deleted": [{"path": "/old", "before": side(size=3000)}, {"path": "/dir", "before": side("directory", size=0)}],
        "type_changed": [
            {"path": "/t", "before": side(), "after": side("symlink", target="x"), "attributes": ["type"]}
        ],
        "unchanged": 5,
    }
    text = shown(reply(changes=changes))
    order(
        text,
        "Changeset cs1  PENDING",
        "exit code 0 after 0.2 s",
        "expires  in 1 h 0 min",
        "Risks: 1",
        "! /bin/run  runs with another user's rights",
        "Deleted: 2 entries, 2.9 KiB",
        "- /old  file, 2.9 KiB",
        "Added: 1",
        "Modified: 1",
        "~ /m  content 12 B → 2.0 KiB, mode 0644 → 0600",
        "Type changed: 1",
        "file, 12 B, mode 0644 → link to x",
        "Side effects",
        "Next",
        "fluxctl sandbox approve sb1 cs1 --digest sha256:abc",
    )


def test_what_cannot_be_applied_is_not_offered_for_approval() -> None:
    text = shown(reply(unstaged=[{"path": "/big", "reason": "larger than 16 MiB", "size": 9}]))
    order(text, "cannot be applied as it is", "/big  larger than 16 MiB", "fluxctl sandbox reject sb1 cs1")
    assert "sandbox approve" not in text


def test_every_doubt_is_told() -> None:
    text = shown(
        reply(
            base_changed_during_run=True,
            base_changes=["/moved"],
            warnings=["no room for diffs"],
            skipped=[{"path": "/s.sock", "reason": "a socket"}],
            not_captured=[{"path": "/mnt", "reason": "a mount"}],
            discarded=[{"place": "/tmp", "entries": 3, "size": 2048}],
        )
    )
    for part in (
        "the real workspace changed during the run: /moved",
        "no room for diffs",
        "/s.sock  a socket",
        "/mnt  a mount",
        "/tmp  3 entries, 2.0 KiB",
    ):
        assert part in text


def test_side_effects_are_told_in_words() -> None:
    flows = [{"proto": "tcp", "dst": "192.0.2.1", "port": 80, "verdict": "refused", "connections": 2}]
    effects = {
        "egress": "blocked",
        "enforced": True,
        "observed": flows,
        "replayable": ["3 file changes under /work"],
        "non_replayable": ["mail: sent"],
    }
    text = shown(reply(side_effects=effects))
    assert "there was no network; enforced by the kernel" in text
    assert "refused: tcp 192.0.2.1:80, 2 attempts" in text
    assert "can be applied: 3 file changes under /work" in text
    assert "cannot be undone: mail: sent" in text
    unseen = shown(reply(side_effects={"egress": "unrestricted", "enforced": False, "observed": None}))
    assert "the network was open; not enforced" in unseen
    assert "traffic was not watched" in unseen


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"state": "approved"}, "fluxctl sandbox apply sb1 cs1"),
        ({"state": "applied"}, "fluxctl sandbox revert sb1 cs1"),
        ({"state": "failed", "error": "the disk is full"}, "fluxctl sandbox rerun sb1 cs1"),
        ({"state": "expired"}, "fluxctl sandbox rerun sb1 cs1"),
    ],
)
def test_the_next_step_fits_the_state(fields: dict[str, Any], command: str) -> None:
    text = shown(reply(**fields))
    assert command in text
    assert fields.get("error", "") in text


def test_a_changeset_approved_in_part_says_so() -> None:
    assert "only this part" in shown(reply(state="approved", only=["/a"]))
    assert "only this part" not in shown(reply(state="approved", only=None))


@pytest.mark.parametrize(
    "fields",
    [{"state": "applied", "revertible": False}, {"state": "applied", "reverted_by": "cs2"}, {"state": "rejected"}],
)
def test_where_nothing_is_left_to_do_nothing_is_offered(fields: dict[str, Any]) -> None:
    assert "Next" not in shown(reply(**fields))


def test_nothing_from_a_sandbox_reaches_the_terminal_unescaped() -> None:
    change = {"path": HOSTILE, "before": side("symlink", target=HOSTILE), "after": side("symlink", target=HOSTILE)}
    changes = {
        "added": [{"path": HOSTILE, "after": side("symlink", target=HOSTILE), "risks": ["control_chars_in_name"]}],
        "modified": [{**change, "attributes": ["target", "xattrs", HOSTILE]}],
        "deleted": [{"path": HOSTILE, "before": side()}],
        "type_changed": [{**change, "attributes": ["type"]}],
        "unchanged": 0,
    }
    noted = [{"path": HOSTILE, "reason": HOSTILE}]
    flow = {"proto": "udp", "dst": HOSTILE, "name": HOSTILE, "verdict": "allowed"}
    item = reply(
        command=HOSTILE,
        copy_engine_reason=HOSTILE,
        paths=[HOSTILE],
        stdout=f"{HOSTILE}\n",
        stderr=HOSTILE,
        changes=changes,
        unstaged=noted,
        skipped=noted,
        not_captured=noted,
        discarded=[{"place": HOSTILE, "entries": 1, "size": 1}],
        warnings=[HOSTILE],
        base_changed_during_run=True,
        base_changes=[HOSTILE],
        comment=HOSTILE,
        decided_by=HOSTILE,
        decided_at="2023-11-14T22:13:20.000Z",
        error=HOSTILE,
        side_effects={
            "egress": "allow_listed",
            "enforced": True,
            "destinations": [HOSTILE],
            "observed": [flow],
            "replayable": [HOSTILE],
            "non_replayable": [HOSTILE],
        },
    )
    diffs = [difference(HOSTILE, f"@@ {HOSTILE}\n+x\x1b[2J\n", HOSTILE), difference(HOSTILE, None, HOSTILE)]
    text = shown(item, diffs=diffs)
    assert text.count("[bold]b[/bold]") > 20  # the markup of a name is text like any other
    assert not [char for char in text if char != "\n" and (ord(char) < 32 or ord(char) in (0x7F, 0x202E))]


def difference(path: str, text: str | None, note: str | None, **sides: Any) -> dict[str, Any]:
    return {"path": path, "text": text, "note": note, "before": None, "after": side(), **sides}


def test_a_diff_keeps_the_text_of_the_file() -> None:
    diffs = [difference("/a", '@@ -1 +1 @@\n-\told\\n\n+\t"new\\n"\n', None)]
    text = shown(reply(), diffs=diffs)
    order(text, "/a", "@@ -1 +1 @@", "old\\n", '"new\\n"')


def test_directories_have_no_diff_and_what_is_not_text_says_so() -> None:
    directory = difference("/d", None, "not a regular file", after=side("directory"))
    text = shown(reply(), diffs=[directory, difference("/b", None, "binary")])
    assert "not a regular file" not in text
    assert "/b  binary" in text


def test_a_command_of_many_lines_stands_below_itself() -> None:
    text = shown(reply(command="set -e\nprintf 'a\\n'\n\tdone\n"))
    assert "  command  set -e\n           printf 'a\\n'\n" in text
    assert "… and 5 more lines" in shown(reply(command="x\n" * 25))


def test_an_inverse_says_what_it_undoes_and_nothing_of_a_run() -> None:
    text = shown(reply(run_via="revert", reverts="cs0", exit_code=None, command="revert cs0"))
    assert "reverts  cs0" in text
    assert "network" not in text
    assert "ended" not in text


def test_long_lists_end_with_what_was_left_out() -> None:
    many = [{"path": f"/f{number}", "after": side()} for number in range(changeset.SHOWN_ENTRIES + 3)]
    changes = {"added": many, "modified": [], "deleted": [], "type_changed": [], "unchanged": 0}
    text = shown(reply(changes=changes))
    assert "Added: 43" in text
    assert "… and 3 more; --json lists all" in text


def test_only_the_end_of_the_output_is_shown() -> None:
    text = shown(reply(stdout="".join(f"line {number}\n" for number in range(100))))
    assert "stdout, the last 12 of 100 lines" in text
    assert "line 99" in text
    assert "line 87\n" not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (16 << 20, "16.0 MiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert words.seconds(seconds) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"timed_out": True, "signal": 9}, "killed after 0.2 s: it took longer than its time-out"),
        ({"exit_code": None, "signal": 11}, "killed by signal 11 after 0.2 s"),
        ({"exit_code": None}, "no command was run"),
        ({"exit_code": 3}, "exit code 3 after 0.2 s"),
    ],
)
def test_endings(fields: dict[str, Any], text: str) -> None:
    assert words.ending(reply(**fields)) == text


def test_tables_escape_names_too() -> None:
    target = io.StringIO()
    console = Console(file=target, width=200, markup=False)
    tables.keys(
        console,
        {
            "items": [
                {"id": "k1", "name": HOSTILE, "role": "user", "created_at": reply()["created_at"], "revoked_at": None}
            ]
        },
    )
    tables.findings(console, {"checks": [{"subject": HOSTILE, "ok": False, "detail": HOSTILE, "fix": HOSTILE}]})
    console.print(
        tables.audit_line(
            {"time": reply()["created_at"], "actor": HOSTILE, "event": "key.created", "role": "admin", "name": HOSTILE}
        )
    )
    assert "\x1b" not in target.getvalue()
    assert "[bold]b[/bold]" in target.getvalue()
