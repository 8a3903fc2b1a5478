"""Decisions: digests, parts, who may, one request at a time (spec: speculation)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flux.core.access import Actor, Role
from flux.core.changeset import State
from flux.core.errors import Code, FluxError
from flux.core.requests import Approve, Decide
from flux.core.sandbox import Sandbox
from flux.failpoints import Point, armed
from tests.engine.kit import ADMIN, Kit, refused


def test_the_digest_that_was_reviewed_is_the_one_approved(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    with refused(Code.CONFLICT) as error:
        kit.approve(made, digest="sha256:other")
    assert error.value.details["reason"] == "digest_mismatch"
    assert kit.state_of(made) is State.PENDING
    assert kit.approve(made, digest=made.changeset.digest).changeset.digest == made.changeset.digest


@pytest.mark.parametrize("victim", ["blobs/000000", "changes.json", "base.json"])
def test_what_was_changed_after_the_approval_fails_and_writes_nothing(kit: Kit, sandbox: Sandbox, victim: str) -> None:
    (kit.work / "g").write_text("g")
    made = kit.speculate(sandbox, "echo x > f")
    kit.approve(made)
    path = kit.state / "changesets" / made.changeset.id / victim
    data = path.read_bytes()
    changed = data.replace(b"0644", b"0755", 1) if victim == "changes.json" else data.replace(b"x", b"y", 1)
    if victim == "base.json":
        changed = data.replace(b"/g", b"/h", 1)
    assert changed != data
    path.write_bytes(changed)
    with refused(Code.CONFLICT) as error:
        kit.apply(made)
    assert error.value.details["reason"] == "digest_mismatch"
    assert not (kit.work / "f").exists()
    assert kit.state_of(made) is State.FAILED
    with refused(Code.ILLEGAL_STATE):
        kit.apply(made)


def test_a_part_is_applied_and_the_rest_is_not(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "mkdir d; echo a > d/a; echo b > b")
    approved = kit.approve(made, only=["/d/a"])
    assert {change.path for change in approved.changes.every()} == {"/d", "/d/a"}
    assert approved.changeset.digest != made.changeset.digest
    assert approved.changeset.only == ["/d", "/d/a"]
    kit.apply(made)
    assert (kit.work / "d" / "a").read_text() == "a\n"
    assert not (kit.work / "b").exists()


def test_a_part_that_is_none(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo b > b")
    for only in (["/nothing"], [], ["relative"]):
        with refused(Code.INVALID):
            kit.approve(made, only=only)
    assert kit.state_of(made) is State.PENDING


def test_an_excluded_unstaged_entry_no_longer_blocks(tmp_path: Path) -> None:
    from flux.core.limits import Caps

    kit = Kit(tmp_path, caps=Caps(file_bytes=10))
    sandbox = kit.sandbox()
    made = kit.speculate(sandbox, "echo ok > small; head -c 11 /dev/zero > big; head -c 10 /dev/zero > edge")
    assert [entry.path for entry in made.changeset.unstaged] == ["/big"]
    whole = kit.approve(made)
    assert whole.changeset.warnings
    with refused(Code.NOT_APPLICABLE) as error:
        kit.apply(made)
    assert error.value.details["count"] == 1
    assert kit.state_of(made) is State.APPROVED
    part = kit.speculate(sandbox, "echo ok > small; head -c 11 /dev/zero > big; head -c 10 /dev/zero > edge")
    kit.approve(part, only=["/small", "/edge"])
    kit.apply(part)
    assert sorted(os.listdir(kit.work)) == ["edge", "small"]
    kit.engine.close()


def test_the_scope_of_an_approval_counts(kit: Kit, sandbox: Sandbox) -> None:
    wide, narrow = kit.speculate(sandbox, "echo x > f"), kit.speculate(sandbox, "echo x > f")
    kit.approve(wide)
    assert kit.approve(narrow, conflict_scope="touched").changeset.digest != narrow.changeset.digest
    (kit.work / "elsewhere").write_text("moved")
    with refused(Code.CONFLICT):
        kit.apply(wide)
    kit.apply(narrow)
    assert (kit.work / "f").read_text() == "x\n"


def test_comments_and_deciders_are_kept(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    approved = kit.approve(made, comment="looks \udcff good").changeset
    assert (approved.decided_by, approved.comment) == ("ann", "looks \\udcff good")
    with refused(Code.INVALID):
        kit.engine.reject(ADMIN, sandbox.id, made.changeset.id, Decide(comment="x" * 10_001))


@pytest.mark.parametrize("role", [Role.AGENT, Role.USER])
def test_an_agent_never_decides(kit: Kit, sandbox: Sandbox, role: Role) -> None:
    made = kit.speculate(sandbox, "echo x > f").changeset
    actor = Actor(name="bot", role=role, key_id="ky1")
    asks: list[Callable[[], object]] = [
        lambda: kit.engine.approve(actor, sandbox.id, made.id, Approve()),
        lambda: kit.engine.reject(actor, sandbox.id, made.id, Decide()),
        lambda: kit.engine.apply(actor, sandbox.id, made.id, Decide()),
        lambda: kit.engine.revert(actor, sandbox.id, made.id, Decide()),
    ]
    for ask in asks:
        with refused(Code.DENIED):
            ask()


def test_a_changeset_belongs_to_one_sandbox(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f").changeset
    other = kit.sandbox()
    for reference in (other.id, "sbnothing"):
        with refused(Code.NOT_FOUND):
            kit.engine.get_changeset(ADMIN, reference, made.id)
        with refused(Code.NOT_FOUND):
            kit.engine.approve(ADMIN, reference, made.id, Approve())
    for changeset in ("csnothing", "../x", "", "."):
        with refused(Code.NOT_FOUND):
            kit.engine.get_changeset(ADMIN, sandbox.id, changeset)


def test_a_second_request_is_refused_at_once_and_the_first_succeeds(kit: Kit, sandbox: Sandbox) -> None:
    made = kit.speculate(sandbox, "echo x > f")
    kit.approve(made)
    inside, go_on = threading.Event(), threading.Event()

    def hold(point: Point) -> None:
        if point is Point.APPLY_COMMIT:
            inside.set()
            go_on.wait(60)

    first = threading.Thread(target=lambda: kit.apply(made))
    with armed(hold):
        first.start()
        assert inside.wait(60)
        for second in (kit.apply, kit.reject):
            with refused(Code.CONFLICT) as error:
                second(made)
            assert error.value.details["reason"] == "busy"
        go_on.set()
        first.join(60)
    assert kit.state_of(made) is State.APPLIED


def test_two_appliers_at_once_end_with_one_of_them(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "f").write_text("old")
    made = [kit.speculate(sandbox, f"echo {name} > f; echo {name} > {name}") for name in ("a", "b")]
    for one in made:
        kit.approve(one)
    outcomes: list[str] = []
    gate = threading.Barrier(2)

    def go(number: int) -> None:
        gate.wait(60)
        try:
            kit.apply(made[number])
            outcomes.append("applied")
        except FluxError as error:
            outcomes.append(error.code.value)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["applied", "conflict"]
    winner = (kit.work / "f").read_text().strip()
    assert sorted(os.listdir(kit.work)) == sorted(["f", winner])
