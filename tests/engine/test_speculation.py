"""Speculating, applying, reverting, and the further ways on (spec: speculation)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flux.core.changeset import State
from flux.core.errors import Code
from flux.core.limits import MIB, Caps
from flux.core.requests import Decide, DryRun, Exec, Speculate
from flux.core.sandbox import Sandbox
from flux.engine.results import ChangesetDetail
from flux.engine.speculation.guard import DiskGuard
from flux.failpoints import Point, armed
from tests.engine.kit import ADMIN, Kit, refused


def paths_of(made: ChangesetDetail) -> dict[str, list[str]]:
    changes = made.changes
    kinds = ("added", "modified", "deleted", "type_changed")
    return {kind: [change.path for change in getattr(changes, kind)] for kind in kinds if getattr(changes, kind)}


def rerun(kit: Kit, made: ChangesetDetail) -> ChangesetDetail:
    return kit.engine.rerun(ADMIN, made.changeset.sandbox_id, made.changeset.id, Decide())


def test_a_run_touches_nothing_real_and_tells_what_it_did(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("a\n")
    (kit.work / "b").write_text("b\n")
    made = kit.speculate(sandbox, "echo out; echo err >&2; echo more >> a; rm b; mkdir -p c/d; exit 3")
    record = made.changeset
    assert sorted(os.listdir(kit.work)) == ["a", "b"]
    assert (kit.work / "a").read_text() == "a\n"
    assert paths_of(made) == {"added": ["/c", "/c/d"], "modified": ["/a"], "deleted": ["/b"]}
    assert (record.exit_code, record.signal, record.timed_out) == (3, None, False)
    assert (record.stdout.text, record.stderr.text) == ("out\n", "err\n")
    assert (record.run_via, record.copy_engine) == ("workspace-copy", "copy")
    assert record.counts == {"added": 2, "modified": 1, "deleted": 1, "type_changed": 0, "unchanged": 1}
    assert record.state is State.PENDING
    assert record.revertible
    assert kit.engine.get_changeset(ADMIN, sandbox.id, record.id) == made
    assert os.listdir(kit.state / "scratch") == []


def test_an_apply_does_what_the_command_did(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("a\n")
    kit.land(sandbox, "echo more >> a; mkdir d; echo x > d/x; ln -s x d/l; chmod 4755 d/x")
    assert (kit.work / "a").read_text() == "a\nmore\n"
    assert os.readlink(kit.work / "d" / "l") == "x"
    assert os.stat(kit.work / "d" / "x").st_mode & 0o7777 == 0o4755


@pytest.mark.parametrize("command", ["true", "touch f", "cat f > g; mv g f", "mv f g; mv g f"])
def test_what_changes_nothing_is_an_empty_changeset(kit: Kit, sandbox: Sandbox, command: str) -> None:
    (kit.work / "f").write_text("f\n")
    made = kit.speculate(sandbox, command)
    assert paths_of(made) == {}
    kit.approve(made)
    assert kit.apply(made).changeset.state is State.APPLIED


def test_processes_left_behind_neither_delay_nor_write(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "(sleep 1000; echo late > late) & echo now")
    assert made.changeset.stdout.text == "now\n"
    assert paths_of(made) == {}
    assert not any(instance.alive() for instance in kit.plain.instances)


def test_a_run_over_its_time_offers_what_it_did(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f; sleep 1000", timeout_seconds=0.5)
    assert (made.changeset.timed_out, made.changeset.signal, made.changeset.exit_code) == (True, 9, None)
    assert paths_of(made) == {"added": ["/f"]}


def test_output_of_any_size_is_bounded_and_told(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "head -c 100000000 /dev/zero; printf '\\377' >&2")
    assert made.changeset.stdout.size == 100_000_000
    assert made.changeset.stdout.text.endswith(f"[truncated {100_000_000 - 65536} bytes]")
    assert made.changeset.stderr.base64 == "/w=="


@pytest.mark.parametrize(
    "request_",
    [
        Speculate(),
        Speculate(command="true", argv=["true"]),
        Speculate(command="true", paths=["relative"]),
        Speculate(command="true", paths=["/a/../b"]),
        Speculate(command="true", timeout_seconds=0),
        Speculate(command="true", cwd="relative"),
        Speculate(command="true", environment={"A B": ""}),
        Speculate(argv=["/no/such/program"]),
    ],
    ids=str,
)
def test_bad_requests_leave_nothing(kit: Kit, sandbox: Sandbox, request_: Speculate) -> None:
    with refused(Code.INVALID):
        kit.engine.speculate(ADMIN, sandbox.id, request_)
    assert os.listdir(kit.state / "changesets") == []
    assert os.listdir(kit.state / "scratch") == []


def test_what_is_not_there(kit: Kit, sandbox: Sandbox) -> None:
    with refused(Code.NOT_FOUND):
        kit.engine.speculate(ADMIN, "sbnothing", Speculate(command="true"))
    with refused(Code.NOT_FOUND):
        kit.speculate(sandbox, "true", parent="csnothing")
    os.rmdir(kit.work)
    with refused(Code.CONFLICT) as error:
        kit.speculate(sandbox, "true")
    assert "gone" in error.value.message


def test_a_workspace_over_its_limit_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_workspace_mib=1)
    (kit.work / "big").write_bytes(b"x" * (MIB + 1))
    sandbox = kit.sandbox()
    with refused(Code.TOO_LARGE) as error:
        kit.speculate(sandbox, "true")
    assert error.value.details == {"measured_bytes": MIB + 1, "limit_bytes": MIB}
    (kit.work / "big").write_bytes(b"x" * MIB)
    kit.speculate(sandbox, "true")
    kit.engine.close()


def test_only_the_paths_are_captured_and_the_rest_is_told(kit: Kit, sandbox: Sandbox) -> None:
    for name in ("in", "out"):
        (kit.work / name).mkdir()
    made = kit.speculate(sandbox, "echo 1 > in/f; echo 22 > out/f", paths=["/in"])
    assert paths_of(made) == {"added": ["/in/f"]}
    assert [(one.entries, one.size) for one in made.changeset.discarded] == [(1, 3)]
    (kit.work / "out" / "moved").write_text("x")
    kit.approve(made)
    kit.apply(made)
    assert sorted(os.listdir(kit.work / "out")) == ["moved"]


def test_a_base_that_moves_during_the_run_is_told(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, f"echo moved > {kit.work}/moved; echo x > f")
    assert made.changeset.base_changed_during_run
    assert made.changeset.base_changes == ["/moved"]
    kit.approve(made)
    with refused(Code.CONFLICT):
        kit.apply(made)


def test_drift_is_a_conflict_that_names_ten_and_counts_all(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    kit.approve(made)
    for number in range(12):
        (kit.work / f"n{number:02}").write_text("newer")
    for _ in range(2):
        with refused(Code.CONFLICT) as error:
            kit.apply(made)
        assert error.value.details["count"] == 12
        assert len(error.value.details["conflicts"]) == 10
        assert {"path", "expected", "found"} <= set(error.value.details["conflicts"][0])
    assert kit.state_of(made) is State.APPROVED
    assert not (kit.work / "f").exists()
    assert kit.events(made.changeset.id)[-2:] == ["changeset.conflict", "changeset.conflict"]
    for number in range(12):
        (kit.work / f"n{number:02}").unlink()
    kit.apply(made)
    assert (kit.work / "f").read_text() == "x\n"


def test_a_replaced_workspace_is_a_conflict(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    kit.approve(made)
    os.rename(kit.work, kit.work.with_name("old"))
    kit.work.mkdir()
    with refused(Code.CONFLICT) as error:
        kit.apply(made)
    assert error.value.details["reason"] == "replaced"
    assert os.listdir(kit.work) == []
    assert kit.state_of(made) is State.APPROVED


def test_the_sandbox_is_frozen_while_it_is_written_to(tmp_path: Path) -> None:
    kit = Kit(tmp_path, persistent=True)
    sandbox = kit.sandbox()
    kit.engine.execute(ADMIN, sandbox.id, Exec(command="true"))
    seen: list[tuple[int, int]] = []

    def look(point: Point) -> None:
        if point is Point.APPLY_COMMIT:
            seen.append((kit.plain.instances[0].frozen, kit.plain.instances[0].thawed))

    made = kit.speculate(sandbox, "echo x > f")
    kit.approve(made)
    with armed(look):
        kit.apply(made)
    assert seen == [(1, 0)]
    assert kit.plain.instances[0].thawed == 1
    kit.engine.close()


def test_a_revert_is_a_changeset_like_any_other(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("a\n")
    (kit.work / "b").write_text("b\n")
    made = kit.land(sandbox, "echo more >> a; rm b; echo c > c")
    inverse = kit.revert(made)
    assert inverse.changeset.state is State.PENDING
    assert (inverse.changeset.run_via, inverse.changeset.reverts) == ("revert", made.changeset.id)
    assert paths_of(inverse) == {"added": ["/b"], "modified": ["/a"], "deleted": ["/c"]}
    assert kit.events(made.changeset.id)[-1] == "changeset.reverted"
    with refused(Code.CONFLICT) as error:
        kit.revert(made)
    assert error.value.details["reverted_by"] == inverse.changeset.id
    kit.approve(inverse)
    kit.apply(inverse)
    assert {path.name: path.read_text() for path in kit.work.iterdir()} == {"a": "a\n", "b": "b\n"}
    with refused(Code.CONFLICT):
        kit.revert(made)
    again = kit.revert(inverse)
    kit.approve(again)
    kit.apply(again)
    assert {path.name: path.read_text() for path in kit.work.iterdir()} == {"a": "a\nmore\n", "c": "c\n"}


def test_what_a_revert_put_back_has_its_own_number_of_links(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "gone").write_text("1")
    (kit.work / "edited").write_text("1")
    os.link(kit.work / "edited", kit.work / "twin")
    inverse = kit.revert(kit.land(sandbox, "rm gone; echo 2 > edited"))
    kit.approve(inverse)
    kit.apply(inverse)
    links = {name: (kit.work / name).stat().st_nlink for name in ("gone", "edited", "twin")}
    assert links == {"gone": 1, "edited": 2, "twin": 2}
    assert (kit.work / "edited").read_text() == "1"


def test_a_revert_that_was_rejected_may_be_asked_for_again(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.land(sandbox, "echo c > c")
    kit.reject(kit.revert(made))
    kit.approve(second := kit.revert(made))
    kit.apply(second)
    assert os.listdir(kit.work) == []


def test_a_revert_on_drift_is_a_conflict(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.land(sandbox, "echo c > c")
    (kit.work / "c").write_text("newer\n")
    inverse = kit.revert(made)
    kit.approve(inverse)
    with refused(Code.CONFLICT):
        kit.apply(inverse)
    assert (kit.work / "c").read_text() == "newer\n"


@pytest.mark.parametrize("state", [State.PENDING, State.APPROVED, State.REJECTED])
def test_only_what_was_applied_is_reverted(kit: Kit, sandbox: Sandbox, state: State) -> None:
    made = kit.speculate(sandbox, "echo c > c")
    if state is State.APPROVED:
        kit.approve(made)
    if state is State.REJECTED:
        kit.reject(made)
    with refused(Code.ILLEGAL_STATE):
        kit.revert(made)


def test_what_is_too_much_to_keep_is_not_revertible_and_says_so(tmp_path: Path) -> None:
    kit = Kit(tmp_path, caps=Caps(revert_bytes=10))
    (kit.work / "f").write_text("x" * 11)
    made = kit.speculate(kit.sandbox(), "echo y > f")
    assert not made.changeset.revertible
    assert "11 bytes" in (made.changeset.revertible_reason or "")
    kit.approve(made)
    kit.apply(made)
    with refused(Code.CONFLICT) as error:
        kit.revert(made)
    assert error.value.details["reason"] == "not_revertible"
    kit.engine.close()


def test_a_rerun_works_on_what_is_there_now_and_supersedes(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "ls > list", environment={"A": "b"}, ttl_seconds=60)
    kit.approve(made)
    (kit.work / "new").write_text("")
    with refused(Code.CONFLICT):
        kit.apply(made)
    again = rerun(kit, made)
    assert again.changeset.supersedes == made.changeset.id
    old = kit.engine.get_changeset(ADMIN, sandbox.id, made.changeset.id).changeset
    assert (old.state, old.superseded_by) == (State.REJECTED, again.changeset.id)
    assert again.changeset.expires_at - again.changeset.created_at == 60
    kit.approve(again)
    kit.apply(again)
    assert "new" in (kit.work / "list").read_text()
    with refused(Code.CONFLICT):
        rerun(kit, made)


def test_a_rerun_repeats_bytes_exactly(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.engine.speculate(ADMIN, sandbox.id, Speculate(argv=["touch", "\udcff", "base64:x"]))
    again = rerun(kit, made)
    assert [change.location for change in again.changes.added] == ["/base64:x", "/\udcff"]


def test_an_inverse_is_not_run_again(kit: Kit, sandbox: Sandbox) -> None:
    inverse = kit.revert(kit.land(sandbox, "echo c > c"))
    with refused(Code.CONFLICT):
        rerun(kit, inverse)


def test_a_stack_is_applied_from_below(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("one\n")
    first = kit.speculate(sandbox, "echo two >> a; mkdir d; echo x > d/x")
    second = kit.speculate(sandbox, "echo three >> a; rm d/x; echo y > d/y", parent=first.changeset.id)
    third = kit.speculate(sandbox, "cat a > copy", parent=second.changeset.id)
    assert (kit.work / "a").read_text() == "one\n"
    assert paths_of(second) == {"added": ["/d/y"], "modified": ["/a"], "deleted": ["/d/x"]}
    for made in (first, second, third):
        kit.approve(made)
    with refused(Code.CONFLICT) as error:
        kit.apply(second)
    assert error.value.details["reason"] == "parent"
    for made in (first, second, third):
        kit.apply(made)
    assert (kit.work / "copy").read_text() == "one\ntwo\nthree\n"
    assert os.listdir(kit.work / "d") == ["y"]


def test_a_stack_stands_on_open_changesets_only(kit: Kit, sandbox: Sandbox) -> None:
    first = kit.speculate(sandbox, "echo x > f")
    kit.reject(first)
    with refused(Code.CONFLICT):
        kit.speculate(sandbox, "true", parent=first.changeset.id)


def test_a_stack_on_what_was_applied_is_an_ordinary_run(kit: Kit, sandbox: Sandbox) -> None:
    first = kit.land(sandbox, "echo x > f")
    second = kit.speculate(sandbox, "cat f", parent=first.changeset.id)
    assert second.changeset.stdout.text == "x\n"


def test_a_dry_run_keeps_nothing(kit: Kit, sandbox: Sandbox) -> None:
    result = kit.engine.dry_run(ADMIN, sandbox.id, DryRun(command="echo x > f; echo y"))
    assert [change.path for change in result.changes.added] == ["/f"]
    assert result.stdout.text == "y\n"
    assert os.listdir(kit.state / "changesets") == os.listdir(kit.state / "scratch") == os.listdir(kit.work) == []
    assert kit.engine.list_changesets(ADMIN, sandbox.id).items == []


def test_the_disk_guard_stops_a_run_that_writes_too_much(tmp_path: Path) -> None:
    kit = Kit(tmp_path, run_max_mib=8)
    sandbox = kit.sandbox()
    with refused(Code.EXHAUSTED) as error:
        kit.speculate(sandbox, "while :; do head -c 4000000 /dev/urandom >> f; done")
    assert error.value.details["reason"] == "run"
    assert os.listdir(kit.state / "scratch") == os.listdir(kit.state / "changesets") == []
    kit.engine.close()


def test_the_disk_guard_begins_nothing_without_room(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    full = status.f_bavail * status.f_frsize
    guard = DiskGuard(scratch=str(tmp_path), reserve_bytes=full * 2, run_bytes=1, used_at_start=0)
    with refused(Code.EXHAUSTED) as error:
        guard.check()
    assert error.value.details["reason"] == "disk"
