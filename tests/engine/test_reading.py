"""Reading and exporting changesets; waiting; the index made again."""

from __future__ import annotations

import os
import subprocess
import tarfile
import threading
from pathlib import Path

import msgspec

from flux.core.audit import AuditFilter
from flux.core.changeset import State
from flux.core.errors import Code
from flux.core.requests import Exec
from flux.core.sandbox import Sandbox
from flux.engine.results import ChangesetDetail
from tests.engine.kit import ADMIN, Kit, refused


def test_diffs_survive_drift(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("one\ntwo\n")
    (kit.work / "b").write_bytes(b"\0binary")
    made = kit.speculate(sandbox, "echo three >> a; printf '\\0other' > b; echo new > c; mkdir d")
    (kit.work / "a").write_text("drifted\n")
    diffs = {one.path: one for one in kit.engine.diff(ADMIN, sandbox.id, made.changeset.id)}
    assert "+three" in (diffs["/a"].text or "") and " two" in (diffs["/a"].text or "")
    assert (diffs["/b"].text, diffs["/b"].note) == (None, "binary")
    assert "+new" in (diffs["/c"].text or "")
    assert diffs["/d"].note == "not a regular file"
    assert [one.path for one in kit.engine.diff(ADMIN, sandbox.id, made.changeset.id, "/a")] == ["/a"]
    with refused(Code.NOT_FOUND):
        kit.engine.diff(ADMIN, sandbox.id, made.changeset.id, "/nothing")


def read(kit: Kit, made: ChangesetDetail, path: str) -> bytes:
    found = kit.engine.changeset_file(ADMIN, made.changeset.sandbox_id, made.changeset.id, path)
    with os.fdopen(found.descriptor, "rb") as file:
        data = file.read()
    assert len(data) == found.size
    return data


def test_staged_files_are_read_and_gone_after_a_rejection(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "a").write_text("moved\n")
    made = kit.speculate(sandbox, "echo new > f; mv a b; mkdir d")
    assert read(kit, made, "/f") == b"new\n"
    assert read(kit, made, "/b") == b"moved\n"
    with refused(Code.INVALID):
        read(kit, made, "/d")
    with refused(Code.NOT_FOUND):
        read(kit, made, "/nothing")
    kit.reject(made)
    with refused(Code.ILLEGAL_STATE):
        read(kit, made, "/f")


def test_changesets_are_compared_side_by_side(kit: Kit, sandbox: Sandbox) -> None:
    one = kit.speculate(sandbox, "echo same > same; echo 1 > other; echo x > mine")
    two = kit.speculate(sandbox, "echo same > same; echo 2 > other")
    names = [one.changeset.id, two.changeset.id]
    found = kit.engine.compare(ADMIN, sandbox.id, names)
    assert {entry.path: entry.same for entry in found.entries} == {"/same": True, "/other": False, "/mine": False}
    assert [record.id for record in found.changesets] == names
    for wrong in ([names[0]], [names[0], names[0]], []):
        with refused(Code.INVALID):
            kit.engine.compare(ADMIN, sandbox.id, wrong)


def test_a_patch_is_one_that_git_applies(kit: Kit, sandbox: Sandbox, tmp_path: Path) -> None:
    (kit.work / "a").write_text("one\ntwo\n")
    (kit.work / "b").write_bytes(b"\0old")
    made = kit.speculate(sandbox, "echo three >> a; printf '\\0new' > b; echo x > c; chmod +x c; ln -s c l")
    target = tmp_path / "target"
    subprocess.run(["cp", "-a", kit.work, target], check=True)
    found = kit.engine.export(ADMIN, sandbox.id, made.changeset.id, "patch")
    with os.fdopen(found.descriptor, "rb") as file:
        patch = file.read()
    assert len(patch) == found.size
    subprocess.run(["git", "apply", "-"], cwd=target, input=patch, check=True)
    assert (target / "a").read_text() == "one\ntwo\nthree\n"
    assert (target / "b").read_bytes() == b"\0new"
    assert os.access(target / "c", os.X_OK)
    assert os.readlink(target / "l") == "c"


def test_a_tar_holds_everything(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > c; chmod 4750 c; ln -s c l; mkdir d; mkfifo p; touch \"$(printf '\\377')\"")
    found = kit.engine.export(ADMIN, sandbox.id, made.changeset.id, "tar")
    with os.fdopen(found.descriptor, "rb") as file, tarfile.open(fileobj=file) as archive:
        members = {member.name: member for member in archive}
        content, description = (archive.extractfile(name) for name in ("files/c", "changeset.json"))
        assert content is not None and content.read() == b"x\n"
        assert description is not None
        assert msgspec.json.decode(description.read())["changeset"]["id"] == made.changeset.id
    assert members["files/c"].mode == 0o4750
    assert members["files/l"].linkname == "c"
    assert members["files/d"].isdir() and members["files/p"].isfifo()
    assert "files/\udcff" in members


def test_who_waits_hears_of_a_decision(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    assert kit.engine.wait(ADMIN, sandbox.id, made.changeset.id, 0).changeset.state is State.PENDING
    heard: list[State] = []
    waiter = threading.Thread(
        target=lambda: heard.append(kit.engine.wait(ADMIN, sandbox.id, made.changeset.id, 60).changeset.state)
    )
    waiter.start()
    kit.approve(made)
    waiter.join(30)
    assert heard == [State.APPROVED]


def test_audit_lines_are_paged_and_awaited(kit: Kit, sandbox: Sandbox) -> None:
    everything = AuditFilter()
    kit.engine.execute(ADMIN, sandbox.id, Exec(command="true"))
    first = kit.engine.audit(ADMIN, everything, 1)
    assert [line.event for line in first.items] == ["sandbox.exec"]
    kit.speculate(sandbox, "true")
    second = kit.engine.wait_for_audit(ADMIN, everything, first.next_cursor, 10)
    assert [line.event for line in second.items] == ["changeset.create"]
    assert kit.engine.wait_for_audit(ADMIN, everything, second.next_cursor, 0).items == []
    with refused(Code.INVALID):
        kit.engine.audit(ADMIN, everything, 1, "7")


def test_audit_lines_of_a_sandbox_are_found_by_its_name_and_by_its_id(kit: Kit) -> None:
    sandbox = kit.sandbox(name="mine")
    for one in (sandbox, kit.sandbox(name="other")):
        kit.engine.execute(ADMIN, one.id, Exec(command="true"))
    for reference in ("mine", sandbox.id):
        page = kit.engine.audit(ADMIN, AuditFilter(sandbox_id=reference), 10)
        assert [line.sandbox_id for line in page.items] == [sandbox.id]
        waited = kit.engine.wait_for_audit(ADMIN, AuditFilter(sandbox_id=reference), "0", 0)
        assert waited.items == page.items
    assert kit.engine.audit(ADMIN, AuditFilter(sandbox_id="sb" + "0" * 16), 10).items == []
    with refused(Code.NOT_FOUND):
        kit.engine.audit(ADMIN, AuditFilter(sandbox_id="nobody"), 10)


def test_the_index_is_made_again_from_the_files(kit: Kit, sandbox: Sandbox) -> None:
    applied, open_one = kit.land(sandbox, "echo x > f"), kit.speculate(sandbox, "echo y > g")
    kit.engine.close()
    for name in ("flux.db", "flux.db-wal", "flux.db-shm"):
        (kit.state / name).unlink(missing_ok=True)
    kit.engine = kit.open()
    assert kit.state_of(applied) is State.APPLIED
    assert kit.state_of(open_one) is State.PENDING
    kit.clock.advance(3600)
    assert kit.state_of(open_one) is State.EXPIRED


def test_speculations_of_one_sandbox_run_side_by_side(kit: Kit, sandbox: Sandbox) -> None:
    os.mkfifo(kit.state.parent / "meet")
    meet = kit.state.parent / "meet"
    made: list[ChangesetDetail] = []
    commands = (f"echo a > {meet}; echo a > a", f"cat {meet}; echo b > b")
    threads = [
        threading.Thread(target=lambda command=command: made.append(kit.speculate(sandbox, command)))
        for command in commands
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(change.path for one in made for change in one.changes.added) == ["/a", "/b"]
