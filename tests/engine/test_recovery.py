"""A crash, or an error, at every single call of the whole way: afterwards before or after, nothing between.

The calls are those of the Files port and the database's commits. A child does the work and dies exactly there; then the
state directory is opened again, recovered, and looked at.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from flux.core.access import SYSTEM
from flux.core.audit import AuditFilter
from flux.core.changeset import FINAL, State
from flux.core.errors import Code, FluxError
from flux.core.requests import Approve, Decide, Speculate
from flux.failpoints import Action, Point, armed
from flux.testing import crash
from tests.engine.kit import ADMIN, Kit, refused

BEFORE = {"a": "a\n", "b": "b\n"}
AFTER = {"a": "a\nmore\n", "c": "c\n"}
COMMAND = "echo more >> a; rm b; echo c > c"
LINES = {
    State.PENDING: ["create"],
    State.APPROVED: ["create", "approved"],
    State.APPLIED: ["create", "approved", "applied"],
    State.REJECTED: ["create", "rejected"],
    State.FAILED: ["create", "approved", "failed"],
}


class Scene:
    """A workspace, a sandbox on it, and what a child does to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.kit = Kit(folder)
        for name, text in BEFORE.items():
            (self.kit.work / name).write_text(text)
        self.sandbox = self.kit.sandbox()
        self.kit.engine.close()
        self.effect: Action = lambda point: None

    def speculate(self) -> None:
        self.kit.speculate(self.sandbox, COMMAND)

    def ask(self, step: str) -> None:
        engine, sandbox = self.kit.engine, self.sandbox.id
        (record,) = engine.list_changesets(ADMIN, sandbox).items
        if step == "approve":
            engine.approve(ADMIN, sandbox, record.id, Approve())
        elif step == "reject":
            engine.reject(ADMIN, sandbox, record.id, Decide())
        else:
            engine.apply(ADMIN, sandbox, record.id, Decide())

    def prepare(self, *steps: str) -> None:
        """Do steps without any harm."""
        self.kit.engine = self.kit.open()
        for step in steps:
            self.do(step)
        self.kit.engine.close()

    def do(self, step: str) -> None:
        if step == "speculate":
            self.speculate()
        elif step == "delete":
            self.kit.delete(self.sandbox)
        else:
            self.ask(step)

    def child(self, step: str) -> Callable[[], None]:
        """Return what a child process does: open the state directory and take one step."""

        def work() -> None:
            self.kit.engine = self.kit.open()
            with armed(self.effect):
                self.do(step)

        return work

    def tree(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.kit.work.iterdir()}

    def check(self) -> State | None:
        """Open, recover, and hold what is there against what is promised; return the changeset's state."""
        self.kit.engine = self.kit.open()
        assert os.listdir(self.kit.state / "scratch") == []
        names = os.listdir(self.kit.state / "changesets")
        assert not any(name.startswith(".") for name in names)
        records = self.kit.engine.list_changesets(ADMIN, self.sandbox.id).items
        assert sorted(record.id for record in records) == sorted(names)
        if not records:
            assert self.tree() == BEFORE
            return None
        (record,) = records
        assert self.tree() == (AFTER if record.state is State.APPLIED else BEFORE)
        ids = Counter(line.id for line in self.kit.engine.audit(SYSTEM, AuditFilter(changeset=record.id), 1000).items)
        assert ids == Counter(f"{record.id}:{name}" for name in LINES[record.state])
        kept = set(os.listdir(self.kit.state / "changesets" / record.id))
        assert ("blobs" in kept) is (record.state in (State.PENDING, State.APPROVED, State.FAILED))
        assert "area" not in kept
        return record.state

    def go_on(self, state: State | None) -> None:
        """Show that what is there can be worked with."""
        if state is None:
            self.kit.engine.speculate(ADMIN, self.sandbox.id, Speculate(command=COMMAND))
            state = State.PENDING
        if state is State.PENDING:
            self.ask("approve")
            state = State.APPROVED
        if state is State.APPROVED:
            self.ask("apply")
            assert self.tree() == AFTER
            return
        assert state in FINAL
        with refused(Code.ILLEGAL_STATE):
            self.ask("apply")


STEPS = {
    "speculate": ([], {None, State.PENDING}),
    "approve": (["speculate"], {State.PENDING, State.APPROVED}),
    "reject": (["speculate"], {State.PENDING, State.REJECTED}),
    "apply": (["speculate", "approve"], {State.APPROVED, State.APPLIED, State.FAILED}),
}


def sweep(tmp_path: Path, step: str, effect: Action, ended_by: int | None) -> set[State | None]:
    """Take ``step`` once for each of its calls, with ``effect`` at that call; return the states that it ended in."""
    before, allowed = STEPS[step]
    seen: set[State | None] = set()
    number = 0
    while True:
        number += 1
        scene = Scene(tmp_path / f"{number}")
        scene.prepare(*before)
        counter = crash.Nth(number, effect)
        scene.effect = counter
        if ended_by is not None:
            ended = crash.in_child(scene.child(step))
            over = ended == 0
            assert over or ended == ended_by
        else:
            with_error(scene, step)
            over = counter.reached < number
        state = scene.check()
        assert state in allowed, (number, state)
        seen.add(state)
        scene.go_on(state)
        scene.kit.engine.close()
        if over:
            return seen


def with_error(scene: Scene, step: str) -> None:
    """Take the step in this process; an error is one of ours."""
    scene.kit.engine = scene.kit.open()
    try:
        with armed(scene.effect):
            scene.do(step)
    except FluxError as error:
        assert error.code in (Code.UNAVAILABLE, Code.EXHAUSTED, Code.UNKNOWN_OUTCOME), error
    finally:
        scene.kit.engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_every_call(tmp_path: Path, step: str) -> None:
    seen = sweep(tmp_path, step, crash.die, -signal.SIGKILL)
    assert seen == STEPS[step][1], "the sweep did not come across every outcome"


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_every_call(tmp_path: Path, step: str, number: int) -> None:
    sweep(tmp_path, step, crash.fail(number), None)


@pytest.mark.slow
def test_a_kill_at_every_call_of_a_deletion(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        scene = Scene(tmp_path / f"{number}")
        scene.prepare("speculate")
        scene.effect = crash.Nth(number, crash.die)
        ended = crash.in_child(scene.child("delete"))
        assert ended in (0, -signal.SIGKILL)
        engine = scene.kit.engine = scene.kit.open()
        left = scene.kit.left()
        folders = os.listdir(scene.kit.state / "sandboxes")
        assert folders == left
        assert left in ([], [scene.sandbox.id])
        assert left == [] or number == 1, "a deletion that has begun is finished"
        scene.kit.sandbox()
        engine.close()
        if ended == 0:
            return


@pytest.mark.parametrize(
    "point", [Point.CHANGESET_WRITE, Point.CHANGESET_PUBLISH, Point.CHANGESET_STATE, Point.AUDIT_APPEND]
)
def test_each_durable_step_of_a_changeset_is_reached(tmp_path: Path, point: Point) -> None:
    scene = Scene(tmp_path / "s")
    reached: set[Point] = set()
    scene.kit.engine = scene.kit.open()
    with armed(reached.add):
        for step in ("speculate", "approve", "apply"):
            scene.do(step)
    scene.kit.engine.close()
    assert point in reached


def test_a_line_that_a_crash_swallowed_is_told_once_with_its_own_time_and_actor(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s")
    scene.prepare("speculate")
    scene.effect = lambda point: crash.die(point) if point is Point.AUDIT_APPEND else None
    assert crash.in_child(scene.child("approve")) == -signal.SIGKILL
    scene.kit.clock.advance(100)
    for _ in range(2):
        scene.kit.engine = scene.kit.open()
        lines = [json.loads(line) for line in (scene.kit.state / "audit.log").read_text().splitlines()]
        (line,) = [line for line in lines if line["event"] == "changeset.approved"]
        assert (line["actor"], line["time"]) == ("ann", scene.kit.clock.wall() - 100)
        scene.kit.engine.close()


def test_an_interrupted_apply_says_so_and_is_not_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s")
    scene.prepare("speculate", "approve")
    scene.effect = lambda point: crash.die(point) if point is Point.APPLY_COMMIT else None
    assert crash.in_child(scene.child("apply")) == -signal.SIGKILL
    assert scene.tree() == AFTER
    assert scene.check() is State.FAILED
    (record,) = scene.kit.engine.list_changesets(ADMIN, scene.sandbox.id).items
    assert "interrupted" in (record.error or "")
    scene.go_on(State.FAILED)
    scene.kit.engine.close()


def test_an_interrupt_from_the_keyboard_takes_everything_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s")
    scene.prepare("speculate", "approve")
    scene.kit.engine = scene.kit.open()

    def interrupt(point: Point) -> None:
        if point is Point.APPLY_COMMIT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), armed(interrupt):
        scene.do("apply")
    scene.kit.engine.close()
    assert scene.check() is State.FAILED
    scene.kit.engine.close()


def test_two_processes_on_two_state_directories_never_mix(tmp_path: Path) -> None:
    first, second = Scene(tmp_path / "one"), Scene(tmp_path / "two")
    second.kit.work = first.kit.work
    second.prepare()
    second.kit.engine = second.kit.open()
    second.sandbox = second.kit.sandbox()
    second.kit.speculate(second.sandbox, "echo second > a; echo second > s")
    second.kit.engine.close()
    second.prepare("approve")
    first.prepare("speculate", "approve")
    children = []
    for scene in (first, second):
        child = os.fork()
        if child == 0:
            code = 2
            try:
                scene.kit.engine = scene.kit.open()
                scene.do("apply")
                code = 0
            except FluxError as error:
                code = 1 if error.code is Code.CONFLICT else 3
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 1]
    assert first.tree() == (AFTER if codes[0] == 0 else {**BEFORE, "a": "second\n", "s": "second\n"})


def test_a_damaged_changeset_does_not_keep_the_others_from_their_users(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s")
    scene.prepare("speculate", "approve")
    scene.effect = lambda point: crash.die(point) if point is Point.APPLY_COMMIT else None
    assert crash.in_child(scene.child("apply")) == -signal.SIGKILL
    (folder,) = (scene.kit.state / "changesets").iterdir()
    (folder / "meta.json").write_bytes(b"{")
    scene.kit.engine = scene.kit.open()
    assert scene.kit.engine.recover().problems
    scene.kit.speculate(scene.sandbox, "true")
    scene.kit.engine.close()


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s")
    scene.prepare("speculate")
    scene.kit.engine = scene.kit.open()
    (record,) = scene.kit.engine.list_changesets(ADMIN, scene.sandbox.id).items
    assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record
    scene.kit.engine.close()
