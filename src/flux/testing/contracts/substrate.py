"""What every substrate must do (``ports.substrate``), as a mixin. A subclass gives the fixture ``substrate``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.ports.substrate import (
    Command,
    Exit,
    Instance,
    LaunchSpec,
    Limits,
    Overlay,
    Process,
    Substrate,
)
from flux.testing.contracts.ports import PortsContract

MIB = 1 << 20
#: How long a test waits for what must come; a failure, never a measure.
PATIENCE_SECONDS = 30.0
#: How long a test watches that nothing comes.
SILENCE_SECONDS = 0.1
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(int(seconds * 1000)))


class Running:
    """A command with pipes of the test's own."""

    def __init__(self, instance: Instance, command: Command) -> None:
        child_stdin, self.stdin = os.pipe()
        self.stdout, child_stdout = os.pipe()
        self.stderr, child_stderr = os.pipe()
        try:
            self.process: Process = instance.spawn(command, child_stdin, child_stdout, child_stderr)
        finally:
            for descriptor in (child_stdin, child_stdout, child_stderr):
                os.close(descriptor)

    def end_input(self) -> None:
        """Let the command read to the end of its input."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def line(self) -> bytes:
        """Return the next line of the output."""
        found = b""
        while not found.endswith(b"\n"):
            assert _readable(self.stdout, PATIENCE_SECONDS), f"nothing came after {found!r}"
            part = os.read(self.stdout, 1)
            assert part, f"the output ended after {found!r}"
            found += part
        return found

    def silent(self) -> bool:
        """Tell whether nothing comes."""
        return not _readable(self.stdout, SILENCE_SECONDS)

    def rest(self) -> bytes:
        """Return the output to its end."""
        return read_all(self.stdout)

    def finish(self) -> tuple[Exit, bytes, bytes]:
        """End the input and return how the command ended, its output and its errors."""
        self.end_input()
        errors: list[bytes] = []
        reader = threading.Thread(target=lambda: errors.append(read_all(self.stderr)))
        reader.start()
        output = self.rest()
        reader.join()
        ended = self.process.wait(PATIENCE_SECONDS)
        assert ended is not None
        return ended, output, errors[0]

    def close(self) -> None:
        """Close the pipes."""
        self.end_input()
        os.close(self.stdout)
        os.close(self.stderr)


def read_all(descriptor: int) -> bytes:
    """Return what comes until the other side closes."""
    parts: list[bytes] = []
    while True:
        assert _readable(descriptor, PATIENCE_SECONDS), "the other side neither writes nor closes"
        part = os.read(descriptor, MIB)
        if not part:
            return b"".join(parts)
        parts.append(part)


def shell(script: str, **changes: object) -> Command:
    """Return a command that runs a shell script in the workspace."""
    command = Command(
        argv=["/bin/sh", "-c", script], environment=ENVIRONMENT, cwd="/work", uid=os.geteuid(), gid=os.getegid()
    )
    return msgspec.structs.replace(command, **changes)


class SubstrateContract(PortsContract):
    """The suite. ``substrate`` may also be overridden per test class with another configuration."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """A directory with what a sandbox is made from: workspace, home, scratch, layers."""
        for name in ("workspace", "home", "scratch", "lower", "upper", "work"):
            (tmp_path / name).mkdir()
        return tmp_path

    @pytest.fixture
    def spec(self, place: Path) -> LaunchSpec:
        """A bound sandbox without network."""
        return LaunchSpec(
            sandbox_id="sbcontract",
            layout="bound",
            tree=str(place / "workspace"),
            home=str(place / "home"),
            scratch=str(place / "scratch"),
            limits=Limits(memory_mib=512, pids=200),
        )

    @pytest.fixture
    def overlay(self, place: Path) -> Overlay:
        """A throwaway layer over the directory ``lower``."""
        return Overlay(
            lower=(str(place / "lower"),), upper=str(place / "upper"), work=str(place / "work"), throwaway=True
        )

    @pytest.fixture
    def start(self, substrate: Substrate) -> Iterator[Callable[[LaunchSpec], Instance]]:
        """Starts sandboxes and closes them after the test."""
        with contextlib.ExitStack() as stack:

            def start(spec: LaunchSpec) -> Instance:
                instance = substrate.start(spec)
                stack.callback(instance.close)
                return instance

            yield start

    @pytest.fixture
    def instance(self, start: Callable[[LaunchSpec], Instance], spec: LaunchSpec) -> Instance:
        """The bound sandbox, running."""
        return start(spec)

    @pytest.fixture
    def run(self, instance: Instance) -> Iterator[Callable[..., Running]]:
        """Starts commands in the bound sandbox."""
        with contextlib.ExitStack() as stack:

            def run(command: str | Command) -> Running:
                running = Running(instance, shell(command) if isinstance(command, str) else command)
                stack.callback(running.close)
                return running

            yield run

    def seen(self, place: Path, inside: str) -> str:
        """Return what a command calls a directory of the sandbox. Only a substrate without walls needs another name."""
        return inside

    # What it is

    def test_it_says_what_it_is(self, substrate: Substrate) -> None:
        assert substrate.kind
        assert all(check.detail and (check.ok or check.fix) for check in substrate.check())
        assert substrate.capabilities().can_fork in (True, False)

    # Running commands

    def test_a_command_gets_arguments_environment_directory_and_streams(
        self, run: Callable[..., Running], place: Path
    ) -> None:
        script = 'pwd; echo "$NAME-$1"; env | wc -l; cat; echo trouble >&2'
        command = shell("", argv=["/bin/sh", "-c", script, "sh", "a b\nc"], environment={**ENVIRONMENT, "NAME": "n\tm"})
        running = run(command)
        os.write(running.stdin, b"in\0put")
        ended, output, errors = running.finish()
        assert ended == Exit(code=0)
        lines = output.split(b"\n")
        assert lines[:3] == [self.seen(place, "/work").encode(), b"n\tm-a b", b"c"]
        assert 3 <= int(lines[3]) <= 6  # the shell adds PWD and the like, nothing of ours comes along
        assert lines[4] == b"in\0put"
        assert errors == b"trouble\n"

    def test_a_program_is_found_by_the_path_of_its_own_environment(
        self, run: Callable[..., Running], place: Path
    ) -> None:
        program = place / "workspace" / "greet"
        program.write_text("echo hello $1\n")  # no interpreter line: the shell's
        program.chmod(0o755)
        command = shell("", argv=["greet", "you"], environment={"PATH": f"/nowhere:{self.seen(place, '/work')}:/bin"})
        assert run(command).finish() == (Exit(code=0), b"hello you\n", b"")

    @pytest.mark.parametrize("code", [0, 1, 127, 255])
    def test_the_exit_code_comes_back(self, run: Callable[..., Running], code: int) -> None:
        assert run(f"exit {code}").finish()[0] == Exit(code=code)

    def test_the_signal_comes_back(self, run: Callable[..., Running]) -> None:
        assert run("kill -TERM $$").finish()[0] == Exit(signal=signal.SIGTERM)

    def test_a_wait_can_end_before_the_command(self, run: Callable[..., Running]) -> None:
        running = run("echo up; exec cat")
        running.line()
        assert running.process.wait(0.01) is None
        running.process.signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_SECONDS) == Exit(signal=signal.SIGINT)
        running.process.signal(signal.SIGINT)  # nothing happens
        assert running.process.wait() == Exit(signal=signal.SIGINT)

    def test_a_wait_ends_with_the_command_not_with_what_it_left(self, run: Callable[..., Running]) -> None:
        running = run("(exec cat >/dev/null) <&0 & echo started")
        assert running.line() == b"started\n"
        assert running.process.wait(PATIENCE_SECONDS) == Exit(code=0)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"argv": ["/no/such/program"]}, "/no/such/program"),
            ({"argv": ["no-such-program"]}, "no-such-program"),
            ({"argv": ["/etc"]}, "/etc"),
            ({"cwd": "/work/missing"}, "/work/missing"),
            ({"argv": []}, "program"),
            ({"argv": ["a\0b"]}, "NUL"),
        ],
    )
    def test_a_command_that_cannot_start_is_refused(
        self, run: Callable[..., Running], changes: dict[str, object], named: str
    ) -> None:
        with pytest.raises(FluxError) as refused:
            run(shell("true", **changes))
        assert refused.value.code is Code.INVALID
        assert named in refused.value.message
        assert run("echo well").finish()[1] == b"well\n"

    def test_commands_run_side_by_side(self, run: Callable[..., Running]) -> None:
        several = [run("read word; echo $word") for _ in range(10)]
        assert len({running.process.pid for running in several}) == 10
        for number, running in reversed(list(enumerate(several))):
            os.write(running.stdin, b"%d\n" % number)
            assert running.finish()[1] == b"%d\n" % number

    # Streams

    def test_64_mib_pass_through_intact(self, run: Callable[..., Running]) -> None:
        sent = os.urandom(MIB) * 64
        running = run("exec cat")

        def write() -> None:
            left = memoryview(sent)
            while left:
                left = left[os.write(running.stdin, left) :]
            running.end_input()

        writer = threading.Thread(target=write)
        writer.start()
        received = running.rest()
        writer.join()
        assert received == sent
        assert running.process.wait(PATIENCE_SECONDS) == Exit(code=0)

    def test_the_last_byte_is_not_lost(self, run: Callable[..., Running]) -> None:
        for number in range(30):
            assert run(f"printf {number}").finish() == (Exit(code=0), b"%d" % number, b"")

    def test_arguments_and_environment_may_be_large(self, run: Callable[..., Running]) -> None:
        big = "x" * 100_000
        argv = ["/bin/sh", "-c", 'echo $# ${#1} ${#NAME}; printf %s "${10}"', "sh", *([big] * 9), "last"]
        ended, output, errors = run(shell("", argv=argv, environment={**ENVIRONMENT, "NAME": big})).finish()
        assert (ended, output, errors) == (Exit(code=0), b"10 100000 100000\nlast", b"")

    def test_arguments_that_the_kernel_refuses_are_refused(self, run: Callable[..., Running]) -> None:
        with pytest.raises(FluxError) as refused:
            run(shell("", argv=["/bin/true", "x" * 200_000]))
        assert refused.value.code is Code.INVALID

    # Files

    def test_the_workspace_is_the_directory(self, run: Callable[..., Running], instance: Instance, place: Path) -> None:
        (place / "workspace" / "given").write_text("from outside\n")
        assert run("cat given; echo made >new; mkdir -p a/b").finish()[1] == b"from outside\n"
        assert (place / "workspace" / "new").read_text() == "made\n"
        instance.kill()
        assert sorted(os.listdir(instance.tree_descriptor)) == ["a", "given", "new"]

    def test_home_and_scratch_are_directories(self, run: Callable[..., Running], place: Path) -> None:
        assert run(shell("pwd >here", cwd="/home/user")).finish()[0] == Exit(code=0)
        assert run(shell("pwd >here", cwd="/tmp")).finish()[0] == Exit(code=0)
        assert (place / "home" / "here").read_text() == self.seen(place, "/home/user") + "\n"
        assert (place / "scratch" / "here").read_text() == self.seen(place, "/tmp") + "\n"

    def test_an_overlay_keeps_what_is_below_it(
        self, start: Callable[[LaunchSpec], Instance], spec: LaunchSpec, overlay: Overlay, place: Path
    ) -> None:
        (place / "lower" / "kept").write_text("old")
        (place / "lower" / "gone").write_text("old")
        instance = start(msgspec.structs.replace(spec, tree=overlay))
        running = Running(instance, shell("printf new >kept; rm gone; printf made >made"))
        assert running.finish()[0] == Exit(code=0)
        running.close()
        instance.kill()
        assert sorted(os.listdir(instance.tree_descriptor)) == ["kept", "made"]
        kept = os.open("kept", os.O_RDONLY, dir_fd=instance.tree_descriptor)
        with os.fdopen(kept) as file:
            assert file.read() == "new"
        assert {path.name: path.read_text() for path in (place / "lower").iterdir()} == {"kept": "old", "gone": "old"}

    def test_home_may_be_an_overlay(
        self, start: Callable[[LaunchSpec], Instance], spec: LaunchSpec, overlay: Overlay, place: Path
    ) -> None:
        (place / "lower" / "settings").write_text("mine")
        instance = start(msgspec.structs.replace(spec, home=overlay))
        running = Running(instance, shell("cat settings; echo x >settings", cwd="/home/user"))
        assert running.finish()[1] == b"mine"
        running.close()
        assert (place / "lower" / "settings").read_text() == "mine"

    @pytest.mark.parametrize("absent", ["workspace", "home", "scratch"])
    def test_a_failed_start_is_an_error(
        self, start: Callable[[LaunchSpec], Instance], spec: LaunchSpec, place: Path, absent: str
    ) -> None:
        (place / absent).rmdir()
        with pytest.raises(FluxError) as failed:
            start(spec)
        assert failed.value.code is Code.UNAVAILABLE
        assert str(place / absent) in failed.value.message
        assert "No such file or directory" in failed.value.message

    @pytest.mark.parametrize(
        "changes",
        [{"hostname": "a/b"}, {"scratch": "relative"}, {"net_ports": (443,)}, {"hidden": ("/a/../b",)}],
    )
    def test_an_impossible_spec_is_refused(
        self, start: Callable[[LaunchSpec], Instance], spec: LaunchSpec, changes: dict[str, object]
    ) -> None:
        with pytest.raises(FluxError) as refused:
            start(msgspec.structs.replace(spec, **changes))
        assert refused.value.code is Code.INVALID

    # Ending

    def test_kill_ends_everything(self, run: Callable[..., Running], instance: Instance, place: Path) -> None:
        running = run("(setsid sh -c 'echo deep; while :; do echo x >>late; done' &) & wait; exec cat")
        assert running.line() == b"deep\n"
        while not (late := place / "workspace" / "late").exists():
            assert running.silent()
        assert instance.alive()
        instance.kill()
        size = late.stat().st_size
        assert running.rest() == b""  # nobody holds the pipe any more
        assert running.process.wait(0) == Exit(signal=signal.SIGKILL)
        assert not instance.alive()
        assert late.stat().st_size == size

    def test_a_killed_sandbox_runs_nothing(self, instance: Instance) -> None:
        instance.kill()
        instance.kill()
        with pytest.raises(FluxError) as refused:
            Running(instance, shell("true"))
        assert refused.value.code is Code.UNAVAILABLE
        instance.close()
        instance.close()

    def test_an_exit_before_the_kill_is_remembered(self, run: Callable[..., Running], instance: Instance) -> None:
        running = run("exit 7")
        running.finish()
        instance.kill()
        assert running.process.wait(0) == Exit(code=7)

    def test_kill_tree_ends_all_that_came_from_a_command(self, run: Callable[..., Running]) -> None:
        other = run("echo up; exec cat")
        other.line()
        running = run("(setsid sh -c 'echo deep; exec cat /dev/zero >/dev/null' &) & wait; exec cat")
        assert running.line() == b"deep\n"
        running.process.kill_tree()
        assert running.rest() == b""
        assert running.process.wait(0) == Exit(signal=signal.SIGKILL)
        os.write(other.stdin, b"alive\n")
        assert other.line() == b"alive\n"

    def test_kill_tree_ends_what_outlived_its_command(self, run: Callable[..., Running]) -> None:
        running = run("(setsid sh -c 'echo deep; exec cat /dev/zero >/dev/null' &) & wait; exit 3")
        assert running.line() == b"deep\n"
        assert running.process.wait(PATIENCE_SECONDS) == Exit(code=3)
        running.process.kill_tree()
        running.process.kill_tree()
        assert running.rest() == b""
        assert running.process.wait(0) == Exit(code=3)

    # Standing still

    def test_nothing_runs_while_frozen(self, run: Callable[..., Running], instance: Instance) -> None:
        running = run("echo up; exec cat")
        running.line()
        instance.freeze()
        os.write(running.stdin, b"wait\n")
        assert running.silent()
        instance.thaw()
        assert running.line() == b"wait\n"

    def test_what_starts_while_frozen_waits_too(self, run: Callable[..., Running], instance: Instance) -> None:
        instance.freeze()
        started: list[Running] = []
        starter = threading.Thread(target=lambda: started.append(run("echo ran")))
        starter.start()
        starter.join(SILENCE_SECONDS)
        assert all(running.silent() for running in started)
        instance.thaw()
        starter.join(PATIENCE_SECONDS)
        assert started[0].finish()[1] == b"ran\n"

    def test_a_frozen_sandbox_can_be_killed(self, run: Callable[..., Running], instance: Instance) -> None:
        running = run("echo up; exec cat")
        running.line()
        instance.freeze()
        instance.kill()
        assert running.process.wait(0) == Exit(signal=signal.SIGKILL)

    def test_usage_counts(self, run: Callable[..., Running], instance: Instance) -> None:
        before = instance.usage()
        running = run("echo up; exec cat")
        running.line()
        after = instance.usage()
        assert after.processes == before.processes + 1
        assert after.memory > 0
        assert after.cpu_seconds >= before.cpu_seconds

    # The network

    def test_the_network_is_told_about_truthfully(self, substrate: Substrate, instance: Instance) -> None:
        flows = instance.flows()
        assert (flows is not None) == substrate.capabilities().observes_network
        assert not flows
