"""The engine on real process sandboxes: the whole way, and what must not get out of them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.changeset import State
from flux.core.errors import Code, FluxError
from flux.core.requests import Exec
from flux.core.sandbox import Sandbox
from flux.engine.results import ChangesetDetail
from flux.network.sink import TunSink
from flux.substrates.procbox.substrate import Procbox
from tests.engine.kit import ADMIN, Kit, refused

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]


@pytest.fixture(params=[False, True], ids=["embedded", "daemon"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    substrate = Procbox(str(tmp_path / "state"), sink=TunSink())
    made = Kit(tmp_path, substrate, persistent=request.param)
    yield made
    made.engine.close()


def run(box: Kit, sandbox: Sandbox, command: str) -> str:
    result = box.engine.execute(ADMIN, sandbox.id, Exec(command=command))
    return result.stdout.text + result.stderr.text


def test_the_whole_way_there_and_back(box: Kit) -> None:
    (box.work / "a").write_text("a\n")
    sandbox = box.sandbox()
    made = box.speculate(sandbox, "echo more >> a; mkdir d; ln -s ../a d/l; pwd")
    assert made.changeset.stdout.text == "/work\n"
    assert made.changeset.copy_engine
    assert os.listdir(box.work) == ["a"]
    box.approve(made)
    box.apply(made)
    assert run(box, sandbox, "cat d/l") == "a\nmore\n"
    box.approve(inverse := box.revert(made))
    box.apply(inverse)
    assert run(box, sandbox, "cat a; ls") == "a\na\n"


def test_what_is_written_beside_the_workspace_goes_and_is_told(box: Kit) -> None:
    sandbox = box.sandbox()
    run(box, sandbox, "echo kept > ~/f")
    made = box.speculate(sandbox, "cat ~/f; printf 12345 > ~/g; printf 123 > /tmp/t")
    assert made.changeset.stdout.text == "kept\n"
    assert {one.place: (one.entries, one.size) for one in made.changeset.discarded} == {
        "/home/user": (1, 5),
        "/tmp": (1, 3),
    }
    assert run(box, sandbox, "ls ~ /tmp") == "/home/user:\nf\n\n/tmp:\n"


def test_a_run_sees_neither_a_nested_mount_nor_what_lies_beneath_it(box: Kit) -> None:
    point = box.work / "d" / "mount"
    point.mkdir(parents=True)
    (point / "beneath").write_text("1")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(point)], check=True)
    try:
        (point / "mounted").write_text("2")
        made = box.speculate(box.sandbox(), "find d -type f; echo 3 > d/mount/x; echo 4 > d/y")
    finally:
        subprocess.run(["umount", str(point)], check=True)
    assert made.changeset.stdout.text == ""
    assert [each.path for each in made.changeset.not_captured] == ["/d/mount"]
    assert [each.location for each in made.changes.every()] == ["/d/y"]


def test_nothing_of_the_state_is_to_be_seen(box: Kit) -> None:
    sandbox = box.sandbox()
    assert "No such file" in run(box, sandbox, f"ls {box.state}")
    assert run(box, sandbox, "ls -A / | grep -c state || true").strip() == "0"


def test_network_attempts_are_refused_and_reported(box: Kit) -> None:
    script = "import socket; s = socket.socket(); s.settimeout(5); s.connect(('192.0.2.1', 80))"
    made = box.speculate(box.sandbox(), f"/usr/bin/python3 -c \"{script}\" || perl -e 'exit 0'")
    effects = made.changeset.side_effects
    assert (effects.egress, effects.enforced) == ("blocked", True)
    if "not found" not in made.changeset.stderr.text:
        assert [(flow.dst, flow.port, flow.verdict) for flow in effects.observed or []] == [
            ("192.0.2.1", 80, "refused")
        ]


def test_a_background_process_is_dead_before_the_changeset_is_made(box: Kit) -> None:
    made = box.speculate(box.sandbox(), "setsid sh -c 'sleep 1000; echo late > late' & echo now")
    assert made.changeset.stdout.text == "now\n"
    assert made.changes.every() == []


def test_a_writer_in_the_sandbox_is_frozen_while_a_changeset_is_applied(tmp_path: Path) -> None:
    box = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink()), persistent=True)
    sandbox = box.sandbox()
    run(box, sandbox, "while :; do echo tick >> ~/ticks; sleep 0.01; done >/dev/null 2>&1 &")
    made = box.land(sandbox, "echo x > f")
    assert box.state_of(made) is State.APPLIED
    before = run(box, sandbox, "wc -l < ~/ticks")
    assert run(box, sandbox, "until [ $(wc -l < ~/ticks) -gt " + before.strip() + " ]; do :; done; echo on") == "on\n"
    box.engine.close()


def test_deleting_ends_a_speculation_that_runs(box: Kit) -> None:
    sandbox = box.sandbox()
    outcome: list[object] = []

    def go() -> None:
        try:
            outcome.append(box.speculate(sandbox, "echo started; sleep 1000"))
        except FluxError as error:
            outcome.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    instances = box.engine._context.instances
    while not instances._throwaway:
        threading.Event().wait(0.001)
    box.delete(sandbox)
    thread.join(60)
    (ended,) = outcome
    if isinstance(ended, ChangesetDetail):
        assert box.state_of(ended) is State.REJECTED
    box.finish_removals()
    assert os.listdir(box.state / "scratch") == os.listdir(box.state / "sandboxes") == []
    with refused(Code.NOT_FOUND):
        box.get(sandbox.id)


def test_a_user_of_the_sandbox(box: Kit) -> None:
    sandbox = box.sandbox()
    for user, uid in (("1234:5678", "1234"), ("user", "1000"), (None, "0")):
        result = box.engine.execute(ADMIN, sandbox.id, Exec(command="id -u", user=user))
        assert result.stdout.text.strip() == uid
    with refused(Code.INVALID):
        box.engine.execute(ADMIN, sandbox.id, Exec(command="id", user="nobody-of-here"))


def test_a_fork_bomb_and_a_full_disk_are_bounded(tmp_path: Path) -> None:
    box = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink()), pids=64, run_max_mib=16)
    sandbox = box.sandbox()
    made = box.speculate(sandbox, "f() { f | f & }; f; sleep 1000", timeout_seconds=2)
    assert made.changeset.timed_out
    with refused(Code.EXHAUSTED):
        box.speculate(sandbox, "dd if=/dev/urandom of=big bs=1M count=10000; sleep 1000", timeout_seconds=60)
    assert os.listdir(box.work) == []
    assert run(box, sandbox, "echo alive") == "alive\n"
    box.engine.close()
