"""Flux is killed: nothing of its sandboxes may stay, no process, mount, network or cgroup (spec: sandboxes)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from flux.network.sink import TunSink
from flux.ports.substrate import LaunchSpec, Limits, Overlay
from flux.substrates.procbox.substrate import Procbox

PATIENCE_MS = 30_000

_OWNER = """
import os, sys
from flux.network.sink import TunSink
from flux.ports.substrate import Command, LaunchSpec, Limits, Overlay
from flux.substrates.procbox.substrate import Procbox
place = sys.argv[1]
spec = LaunchSpec(
    sandbox_id="sbcrash", layout="bound", home=f"{place}/home", scratch=f"{place}/scratch",
    tree=Overlay(lower=(f"{place}/lower",), upper=f"{place}/upper", work=f"{place}/work"),
    limits=Limits(memory_mib=256, pids=50),
)
instance = Procbox(f"{place}/state", sink=TunSink()).start(spec)
script = "(setsid sh -c 'echo up; while :; do :; done' &) & exec cat"
command = Command(
    argv=["/bin/sh", "-c", script],
    environment={"PATH": "/usr/bin:/bin"},
    cwd="/work",
    uid=os.geteuid(),
    gid=os.getegid(),
)
reader, writer = os.pipe()
os.set_inheritable(writer, False)
instance.spawn(command, reader, 1, 2)
print(instance.pid, flush=True)
os.read(0, 1)
"""


def mounts() -> list[str]:
    return [line.split(" ", 1)[1] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def groups() -> list[str]:
    found = [path for path, _, _ in os.walk("/sys/fs/cgroup") if "-sbcrash-" in os.path.basename(path)]
    return sorted(found)


def spec(place: Path) -> LaunchSpec:
    return LaunchSpec(
        sandbox_id="sbalive",
        layout="bound",
        tree=str(place / "lower"),
        home=str(place / "home"),
        scratch=str(place / "scratch"),
        limits=Limits(pids=50),
    )


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    for name in ("home", "scratch", "lower", "upper", "work", "state"):
        (tmp_path / name).mkdir()
    before = mounts()
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    lines = {owner.stdout.readline().strip(), owner.stdout.readline().strip()}
    assert "up" in lines
    init = os.pidfd_open(int((lines - {"up"}).pop()))
    poll = select.poll()
    poll.register(init, select.POLLIN)
    assert not poll.poll(0)

    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert poll.poll(PATIENCE_MS), "the init outlived its owner"
    os.close(init)
    assert owner.stdout.read() == ""  # the last process that held the pipe is gone
    owner.stdout.close()
    assert mounts() == before

    # Only directories of the cgroups are left, without a process, and the next Flux removes them, and no others.
    assert all((Path(group) / "cgroup.procs").read_text() == "" for group in groups())
    substrate = Procbox(str(tmp_path / "state"), sink=TunSink())
    alive = substrate.start(spec(tmp_path))
    try:
        assert groups() == []
        assert substrate.sweep() == []
        assert alive.alive()
    finally:
        alive.close()


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    for name in ("home", "scratch", "lower"):
        (tmp_path / name).mkdir()
    descriptors = len(os.listdir("/proc/self/fd"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    substrate = Procbox(str(tmp_path / "state"), sink=TunSink())
    missing = Overlay(lower=(str(tmp_path / "lower"),), upper=str(tmp_path / "no"), work=str(tmp_path / "no"))
    broken = LaunchSpec(
        sandbox_id="sbcrash",
        layout="bound",
        tree=missing,
        home=str(tmp_path / "home"),
        scratch=str(tmp_path / "scratch"),
    )
    for _ in range(3):
        try:
            substrate.start(broken)
        except Exception as error:
            assert "no: No such file or directory" in str(error)
        else:
            raise AssertionError("it started")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == children
    assert groups() == []
