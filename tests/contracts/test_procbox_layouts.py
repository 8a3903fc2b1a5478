"""What procbox makes of the two layouts, of stacked overlays, terminals and ports, beyond what every substrate does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.network.sink import TunSink
from flux.network.veth import VethNetwork
from flux.ports.substrate import Command, Exit, Instance, LaunchSpec, Limits, Mount, Overlay
from flux.substrates.procbox.instance import ProcboxInstance
from flux.substrates.procbox.substrate import Procbox
from flux.testing.contracts.substrate import Running, shell

Start = Callable[..., ProcboxInstance]
SHOWN = {"bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var", "work"}
MADE = {"dev", "made", "proc", "sys", "tmp"}
root_only = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]


@pytest.fixture
def substrate(tmp_path: Path) -> Procbox:
    return Procbox(str(tmp_path / "state"), sink=TunSink(), network=VethNetwork(str(tmp_path / "network")))


@pytest.fixture
def start(substrate: Procbox, tmp_path: Path) -> Iterator[Start]:
    """Starts sandboxes of which only the differences are given."""
    with contextlib.ExitStack() as stack:
        for name in ("home", "scratch", "workspace", "state", "network"):
            (tmp_path / name).mkdir()

        def start(**changes: object) -> ProcboxInstance:
            spec = LaunchSpec(
                sandbox_id="sblayout",
                layout="bound",
                tree=str(tmp_path / "workspace"),
                home=str(tmp_path / "home"),
                scratch=str(tmp_path / "scratch"),
                limits=Limits(pids=100),
            )
            instance = substrate.start(msgspec.structs.replace(spec, **changes))
            stack.callback(instance.close)
            return instance

        yield start


def layer(place: Path, name: str, *lower: str, descriptor: int | None = None) -> Overlay:
    for kind in ("upper", "work"):
        (place / f"{name}-{kind}").mkdir()
    return Overlay(
        lower=lower,
        upper=str(place / f"{name}-upper"),
        work=str(place / f"{name}-work"),
        lower_descriptor=descriptor,
        throwaway=True,
    )


def said(instance: Instance, script: str, **changes: object) -> str:
    running = Running(instance, shell(f"exec 2>&1; {script}", **changes))
    output = running.finish()[1]
    running.close()
    return output.decode()


@pytest.fixture
def template(tmp_path: Path) -> str:
    """A template that holds a shell and nothing else."""
    made = tmp_path / "template"
    (made / "etc").mkdir(parents=True)
    listed = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout
    for needed in ["/bin/sh", *re.findall(r"/\S+", listed)]:
        copy = made / needed[1:]
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, copy)
    return str(made)


def test_the_system_is_below_a_bound_workspace(start: Start) -> None:
    names = said(start(), "ls /").split()
    assert set(names) >= SHOWN
    assert set(names) <= {*SHOWN, "sbin", *_libraries()}


def _libraries() -> set[str]:
    return {name for name in os.listdir("/") if name.startswith("lib")}


def test_temporary_files_of_both_kinds_are_the_scratch(start: Start, tmp_path: Path) -> None:
    assert said(start(), "echo a >/tmp/a; echo b >/var/tmp/b; stat -c %a /tmp") == "1777\n"
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["a", "b"]


def test_devices_and_shared_memory_work(start: Start) -> None:
    script = "echo x >/dev/null; head -c 4 /dev/zero | wc -c; echo y >/dev/shm/y; ls /dev/fd/0"
    assert said(start(), script) == "4\n/dev/fd/0\n"


def test_processors_are_told(start: Start) -> None:
    assert (
        said(start(), "cat /sys/devices/system/cpu/possible").strip()
        == Path("/sys/devices/system/cpu/possible").read_text().strip()
    )


def test_an_added_directory_is_there(start: Start, tmp_path: Path) -> None:
    tool = tmp_path / "tool: with, odd\\name"
    tool.mkdir()
    (tool / "file").write_text("tool\n")
    instance = start(mounts=(Mount(source=str(tool), target="/opt/a/b"), Mount(source=str(tool), target="/work/c")))
    assert said(instance, "cat /opt/a/b/file /work/c/file") == "tool\ntool\n"


def test_odd_names_make_overlays(start: Start, tmp_path: Path) -> None:
    place = tmp_path / ("n" * 200) / "a:b,c\\d=e f"
    place.mkdir(parents=True)
    lower = [place / str(number) for number in range(40)]
    for number, directory in enumerate(lower):
        directory.mkdir()
        (directory / "same").write_text(f"{number}\n")
        (directory / f"own{number}").touch()
    instance = start(tree=layer(place, "odd", *map(str, lower)))
    assert said(instance, "cat same; ls | wc -l") == "0\n41\n"


def test_a_terminal_controls(start: Start) -> None:
    instance = start()
    master, slave = instance.open_terminal(os.geteuid())
    try:
        command = shell("tty; stty size; trap 'exit 3' INT; echo ready; read line", terminal=True)
        termios.tcsetwinsize(master, (12, 34))
        process = instance.spawn(command, slave, slave, slave)
        os.close(slave)
        with os.fdopen(os.dup(master), "rb", buffering=0) as reader:
            lines = b""
            while b"ready" not in lines:
                lines += reader.read(1)
            assert lines.split()[:3] == [b"/dev/pts/0", b"12", b"34"]
            os.write(master, b"\x03")  # what a person types to interrupt
        assert process.wait(30) == Exit(code=3)
    finally:
        os.close(master)


class TestRootOnly:
    """What takes privileges."""

    pytestmark = root_only

    def test_a_managed_tree_is_the_root(self, start: Start, tmp_path: Path, template: str) -> None:
        instance = start(layout="managed", tree=layer(tmp_path, "own", template), home=None)
        before = set(os.listdir(template))
        running = Running(instance, shell("echo made >/made; echo *", cwd="/"))
        assert set(running.finish()[1].decode().split()) == before | MADE
        running.close()
        instance.kill()
        assert set(os.listdir(instance.tree_descriptor)) == before | MADE
        assert set(os.listdir(template)) == before

    def test_an_overlay_stacks_on_a_running_sandboxs_tree(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "lower").mkdir()
        (tmp_path / "lower" / "file").write_text("base\n")
        first = start(tree=layer(tmp_path, "first", str(tmp_path / "lower")))
        assert said(first, "echo first >>file; cat file") == "base\nfirst\n"
        second = start(tree=layer(tmp_path, "second", descriptor=first.tree_descriptor))
        assert said(second, "echo second >>file; cat file") == "base\nfirst\nsecond\n"
        assert said(first, "cat file") == "base\nfirst\n"
        second.kill()
        assert os.listdir(second.tree_descriptor) == ["file"]

    def test_an_overlay_stacks_on_an_open_directory(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "workspace" / "file").write_text("base\n")
        descriptor = os.open(tmp_path / "workspace", os.O_RDONLY | os.O_DIRECTORY)
        try:
            instance = start(tree=layer(tmp_path, "over", descriptor=descriptor))
            assert said(instance, "rm file; ls") == ""
            assert os.listdir(descriptor) == ["file"]
        finally:
            os.close(descriptor)

    def test_the_tree_of_a_dead_sandbox_is_no_layer(self, start: Start, tmp_path: Path) -> None:
        first = start()
        first.kill()
        with pytest.raises(FluxError) as refused:
            start(tree=layer(tmp_path, "late", descriptor=first.tree_descriptor))
        assert refused.value.code is Code.UNAVAILABLE
        assert "clone the lower tree" in refused.value.message

    def test_owners_stay_true(self, start: Start, tmp_path: Path) -> None:
        instance = start()
        assert said(instance, "touch f g; chown 1234:4321 f; chmod 6755 f; stat -c '%u %g %a' f") == "1234 4321 6755\n"
        status = (tmp_path / "workspace" / "f").stat()
        assert (status.st_uid, status.st_gid, oct(status.st_mode)[-4:]) == (1234, 4321, "6755")

    def test_names_of_one_file_stay_together_in_an_overlay(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "lower").mkdir()
        (tmp_path / "lower" / "one").write_text("old\n")
        os.link(tmp_path / "lower" / "one", tmp_path / "lower" / "two")
        (tmp_path / "lower" / "full").mkdir()
        instance = start(tree=layer(tmp_path, "links", str(tmp_path / "lower")))
        assert said(instance, "echo new >one; cat two; mv full moved && echo moved") == "new\nmoved\n"

    def test_ports_are_for_the_network_that_is_given(self, substrate: Procbox, start: Start) -> None:
        check = VethNetwork().available()
        if not check.ok:
            pytest.skip(f"{check.detail}: {check.fix}")
        instance = start(network="ports", net_ports=(443,))
        assert instance.network_enforced()
        assert instance.flows() == []
        interfaces = said(instance, "cat /proc/net/dev")
        assert interfaces.count(":") == 2  # the loopback and the link

    def test_ports_without_a_network_are_refused(self, tmp_path: Path, start: Start) -> None:
        lone = Procbox(str(tmp_path / "state"))
        spec = LaunchSpec(
            sandbox_id="sblayout",
            layout="bound",
            tree=str(tmp_path / "workspace"),
            home=str(tmp_path / "home"),
            scratch=str(tmp_path / "scratch"),
            network="ports",
            net_ports=(443,),
        )
        with pytest.raises(FluxError) as refused:
            lone.start(spec)
        assert refused.value.code is Code.UNAVAILABLE


def test_without_a_sink_there_is_still_no_network(tmp_path: Path, start: Start) -> None:
    lone = Procbox(str(tmp_path / "state"))
    spec = LaunchSpec(
        sandbox_id="sblayout",
        layout="bound",
        tree=str(tmp_path / "workspace"),
        home=str(tmp_path / "home"),
        scratch=str(tmp_path / "scratch"),
    )
    instance = lone.start(spec)
    try:
        assert instance.flows() is None
        assert instance.network_enforced()
        with socket.create_server(("127.0.0.1", 0)):
            assert "lo" in said(instance, "cat /proc/net/dev")
    finally:
        instance.close()


def test_an_idle_init_is_small(start: Start) -> None:
    instance = start()
    assert said(instance, "echo once") == "once\n"
    rollup = Path(f"/proc/{instance.pid}/smaps_rollup")
    if not os.access(rollup, os.R_OK) or os.geteuid() != 0:
        pytest.skip("needs root to look into a process that is not dumpable")
    proportional = next(line for line in rollup.read_text().splitlines() if line.startswith("Pss:"))
    assert int(proportional.split()[1]) < 1536


def test_an_unknown_user_is_refused_without_privileges(start: Start) -> None:
    if os.geteuid() == 0:
        pytest.skip("needs to run without privileges: root has every user")
    command: Command = shell("id", uid=os.geteuid() + 1)
    with pytest.raises(FluxError) as refused:
        Running(start(), command)
    assert refused.value.code is Code.INVALID
    assert "only the user that runs Flux" in refused.value.message
