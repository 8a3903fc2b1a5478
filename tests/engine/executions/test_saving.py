"""Saving and restoring executions: what survives, what is refused, and what a crash between any two steps leaves."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.sandbox import Sandbox
from flux.engine.lifecycle import launch, saving
from flux.failpoints import armed
from flux.ports.executions import Made
from flux.testing.crash import Nth, count, die, fail, in_child
from tests.engine.executions.kit import CREATED_AT, Machine, differences, look

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]


def test_what_was_synced_before_a_pause_is_there_after_it_i12(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(sandbox, "mkdir /data; echo kept > /data/f; sync /data/f; echo t > /tmp/t")
    for number in range(20):
        sandbox, _ = machine.cycle(sandbox)
        machine.run(sandbox, f"echo {number} > /data/{number}; sync /data/{number}")
    sandbox, _ = machine.cycle(sandbox)
    assert machine.run(sandbox, "cat /data/f /tmp/t; cat /data/[0-9]*| sort -n | tr '\\n' ' '").split() == [
        "kept",
        "t",
        *map(str, range(20)),
    ]


def test_a_pause_without_a_change_adds_no_layer(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(sandbox, "echo 1 > /f")
    sandbox, first = machine.cycle(sandbox)
    sandbox, second = machine.cycle(sandbox)
    assert second.layers == first.layers
    assert (first.stored, second.stored) == (2, 0)
    assert second.reference.id != first.reference.id  # another execution's, all the same


def test_the_other_name_of_a_changed_file_of_the_template_shows_the_change(machine: Machine) -> None:
    (machine.template / "one").write_text("1")
    os.link(machine.template / "one", machine.template / "two")
    (machine.template / "d").mkdir()
    os.link(machine.template / "one", machine.template / "d" / "three")
    sandbox = machine.cold_start()
    machine.run(sandbox, "printf 23 >> /one; rm /one")
    sandbox, _ = machine.cycle(sandbox)
    assert machine.run(sandbox, "cat /two /d/three; [ /two -ef /d/three ] && echo same") == "123123same\n"


def test_a_snapshot_lets_the_sandbox_run_on_and_holds_what_was_there(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(
        sandbox, "mkdir -p /data; echo 1 > /data/f; ln /data/f /data/g; sleep 600 > /dev/null 2>&1 & echo $! > /pid"
    )
    taken = machine.snapshot(sandbox)
    machine.run(sandbox, "kill -0 $(cat /pid) && echo 2 > /data/f")
    paused = machine.pause(sandbox)
    assert paused.layers[0] != taken.layers[0]
    fork = machine.sandbox("sb2")
    fork = machine.connect(fork, taken.reference)
    assert machine.run(fork, "cat /data/f /data/g; [ /data/f -ef /data/g ] && echo same") == "1\n1\nsame\n"
    sandbox = machine.connect(sandbox, paused.reference)
    assert machine.run(sandbox, "cat /data/f") == "2\n"


def test_a_capture_that_fails_leaves_the_sandbox_running_on_as_it_was(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(
        sandbox,
        "mkdir /data; echo 1 > /data/f; echo 0 > /data/t; "
        "(while sleep 0.01; do echo 1 >> /data/t; done) > /dev/null 2>&1 & echo $! > /pid",
    )
    machine.executions.quiesce(sandbox, 1)
    made = machine.executions.capture(sandbox, 1, None, created_at=CREATED_AT, snapshot=False)
    machine.executions.resume(sandbox, 1)
    assert machine.context.layers.artifacts() == []
    assert not machine.context.layers.has(made.layers[0])
    machine.run(sandbox, "kill -0 $(cat /pid) && a=$(wc -c < /data/t) && sleep 0.2 && [ $a != $(wc -c < /data/t) ]")
    sandbox, _ = machine.cycle(sandbox)
    assert machine.run(sandbox, "cat /data/f") == "1\n"


@pytest.mark.parametrize("what", ["content", "mode", "entry", "description"])
def test_a_layer_that_is_not_what_was_saved_starts_nothing(machine: Machine, what: str) -> None:
    sandbox = machine.cold_start()
    machine.run(sandbox, "mkdir /data; echo 1 > /data/f")
    made = machine.pause(sandbox)
    tree = Path(machine.context.layers.tree(made.layers[0]))
    if what == "content":
        (tree / "data/f").write_text("2\n")
    elif what == "mode":
        (tree / "data/f").chmod(0o600)
    elif what == "entry":
        (tree / "data/g").write_text("")
    else:
        with (tree.parent / "layer.json").open("r+b") as file:
            file.write(b" ")
    with pytest.raises(FluxError) as refusal:
        machine.executions.prepare(sandbox, 2, made.reference)
    assert (refusal.value.code, refusal.value.details["reason"]) == (Code.INTERNAL, "DataLoss")
    machine.executions.discard(sandbox.id, 2)
    assert not (machine.state / "sandboxes/sb1/g2").exists()


def test_nobody_starts_or_writes_on_a_tree_that_became_a_layer(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.pause(sandbox)
    with pytest.raises(FluxError) as refusal:
        launch.start(machine.context, sandbox)
    assert refusal.value.code is Code.ILLEGAL_STATE
    assert "resume it first" in refusal.value.message


def test_a_reader_that_keeps_a_file_open_does_not_keep_the_sandbox_from_coming_back(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(sandbox, "echo 1 > /f")
    descriptor = os.open("f", os.O_RDONLY, dir_fd=machine.tree(sandbox))
    try:
        sandbox, _ = machine.cycle(sandbox)
        assert machine.run(sandbox, "cat /f") == "1\n"
        assert os.read(descriptor, 2) == b"1\n"
    finally:
        os.close(descriptor)


def test_everything_of_a_sandbox_goes_but_its_artifacts(machine: Machine) -> None:
    sandbox = machine.cold_start()
    machine.run(sandbox, "echo 1 > /f")
    sandbox, made = machine.cycle(sandbox)
    assert [(one.sandbox_id, one.generation) for one in machine.executions.own()] == [("sb1", 2)]
    machine.executions.remove(sandbox.id)
    machine.executions.remove(sandbox.id)
    assert machine.executions.own() == []
    assert machine.context.layers.artifacts() == [made.reference.id]
    assert os.listdir(machine.state / "sandboxes") == []


def test_a_bound_sandbox_is_never_moved(machine: Machine) -> None:
    sandbox = machine.cold_start(bound=True)
    machine.run(sandbox, "echo 1 > /work/f; echo h > /home/user/h; echo t > /tmp/t; sleep 600 > /dev/null 2>&1 &")
    before = look(os.open(machine.work, os.O_RDONLY))
    made = machine.pause(sandbox)
    assert machine.artifact(made).bound
    assert made.layers == ()
    assert differences(before, look(os.open(machine.work, os.O_RDONLY))) == {}
    assert machine.context.instances.running(sandbox.id) is None
    sandbox = machine.connect(sandbox, made.reference)
    assert machine.run(sandbox, "cat /work/f /home/user/h /tmp/t") == "1\nh\nt\n"
    machine.executions.remove(sandbox.id)
    assert (machine.work / "f").read_text() == "1\n"


def test_a_full_disk_starts_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = machine.sandbox()
    machine.executions.admit(sandbox, None)
    real = os.statvfs(machine.state)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:4], 10, *real[5:])))
    with pytest.raises(FluxError) as refusal:
        machine.executions.admit(sandbox, None)
    assert refusal.value.code is Code.EXHAUSTED


class Interrupted:
    """A sandbox with files, and its capture, to be interrupted at any step."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.machine = Machine(self.folder, persistent=False)
        self.sandbox = self.machine.cold_start()
        upper = Path(saving.upper(self.machine.context, "sb1", 1))
        (upper / "data").mkdir()
        (upper / "data" / "f").write_bytes(os.urandom(100_000))
        os.mknod(upper / "data" / "gone", stat.S_IFCHR, 0)
        os.setxattr(upper / "data" / "f", "user.x", b"1")

    def capture(self) -> Made:
        self.machine.executions.quiesce(self.sandbox, 1)
        return self.machine.executions.capture(self.sandbox, 1, None, created_at=CREATED_AT, snapshot=False)

    def look(self) -> dict[str, tuple[object, ...]]:
        descriptor = os.open(saving.upper(self.machine.context, "sb1", 1), os.O_RDONLY)
        try:
            return look(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self.machine.context.close()
        shutil.rmtree(self.folder)


Break = Callable[[Interrupted, int], None]


def killed(case: Interrupted, number: int) -> None:
    assert in_child(case.capture, Nth(number, die)) == -9
    case.machine.context.locks.__init__(1.0)  # type: ignore[misc]


def failed(case: Interrupted, number: int) -> None:
    with armed(Nth(number, fail(28))), pytest.raises(FluxError) as refusal:
        case.capture()
    assert refusal.value.code is Code.EXHAUSTED


@pytest.mark.parametrize("breaking", [killed, failed])
def test_a_capture_cut_off_at_any_step_leaves_before_or_after(tmp_path: Path, breaking: Break) -> None:
    first = Interrupted(tmp_path, 0)
    steps = count(first.capture)
    first.close()
    assert steps > 8
    for number in range(1, steps + 1):
        case = Interrupted(tmp_path, number)
        before = case.look()
        breaking(case, number)
        if breaking is killed:
            case.machine.reopen()
        assert case.machine.executions.alive(case.sandbox, 1)
        case.machine.executions.resume(case.sandbox, 1)
        assert differences(before, case.look()) == {}, number
        assert case.machine.context.layers.layers() == case.machine.context.layers.artifacts() == [], number
        case.machine.move_row(case.sandbox, NodeState.RUNNING, 1)
        made = case.machine.pause(case.sandbox)
        again = case.machine.connect(case.sandbox, made.reference)
        assert case.machine.run(again, "stat -c %s /data/f").strip() == "100000"
        case.close()


def test_a_prepare_cut_off_at_any_step_is_undone(tmp_path: Path) -> None:
    case = Interrupted(tmp_path, 0)
    made = case.machine.pause(case.sandbox)

    def prepare() -> None:
        case.machine.executions.prepare(case.sandbox, 2, made.reference)

    def discard() -> None:
        case.machine.executions.discard("sb1", 2)
        case.machine.context.stores.places.close()  # what is removed beside has steps of its own

    prepare()  # the first one renews the layer's seal
    discard()
    steps = count(prepare)
    discard()
    for number in range(1, steps + 1):
        assert in_child(prepare, Nth(number, die)) == -9
        case.machine.reopen()
        discard()
        assert [one for one in case.machine.executions.own() if one.generation] == []
        assert case.machine.context.layers.artifacts() == [made.reference.id]
        assert case.machine.context.layers.layers() == sorted(made.layers)
    sandbox: Sandbox = case.machine.connect(case.sandbox, made.reference)
    assert case.machine.run(sandbox, "stat -c %s /data/f").strip() == "100000"
    case.close()
