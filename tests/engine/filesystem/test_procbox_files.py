"""Files of real sandboxes: overlays, copy-up, watches on both sides, and nothing of the kernel's or the host's."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.core.node import Suspend
from flux.core.requests import CreateSandbox, Exec
from flux.core.route import Execution
from flux.core.sandbox import Sandbox
from flux.engine.filesystem.filesystem import Filesystem
from flux.engine.filesystem.spool import Body
from flux.engine.filesystem.watch import Watch
from flux.network.sink import TunSink
from flux.substrates.procbox.substrate import Procbox
from tests.engine.kit import ADMIN, Kit, refused, started

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]

SECONDS = 20.0


class Box:
    """A running managed sandbox over the built-in template."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.sandbox: Sandbox = started(kit.engine, CreateSandbox())

    @property
    def files(self) -> Filesystem:
        return self.kit.engine.filesystem(ADMIN, self.sandbox.id, "user")

    def put(self, path: str, content: bytes = b"x") -> None:
        self.files.put_file(path, Body(size=len(content), data=content))

    def read(self, path: str) -> bytes:
        with os.fdopen(self.files.open_file(path).descriptor, "rb") as stream:
            return stream.read()

    def run(self, command: str) -> str:
        result = self.kit.engine.execute(ADMIN, self.sandbox.id, Exec(command=f"cd /home/user; {command}"))
        assert result.exit_code == 0, result.stderr.text
        return result.stdout.text


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    kit = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink()), persistent=True)
    yield Box(kit)
    kit.engine.close()


def until(watch: Watch, *wanted: tuple[str, str]) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    while not set(wanted) <= set(seen):
        assert select.select([watch.descriptor], [], [], SECONDS)[0], (wanted, seen)
        seen += [(event.type, event.name) for event in watch.read()]
    return seen


def test_what_is_written_is_the_user_s_and_commands_see_it(box: Box) -> None:
    box.put("a/b/f", b"1\n")
    box.put("/tmp/t", b"2\n")
    box.put("/opt/x/y", b"3\n")
    assert box.run("cat a/b/f /tmp/t /opt/x/y; stat -c '%U:%G %a' a a/b a/b/f /opt /opt/x /opt/x/y") == (
        "1\n2\n3\nuser:user 755\nuser:user 755\nuser:user 644\nroot:root 755\nuser:user 755\nuser:user 644\n"
    )
    entry = box.files.stat("a/b/f")
    assert (entry.owner, entry.group) == ("user", "user")
    assert (box.files.stat("/etc/passwd").owner, box.files.stat("/etc").group) == ("root", "root")


def test_a_file_of_the_template_is_copied_up_and_the_host_s_stays(box: Box) -> None:
    before = Path("/usr/bin/env").read_bytes()
    mode = box.files.stat("/usr/bin/env").mode
    box.put("/usr/bin/env", b"#!/bin/sh\necho mine\n")
    assert box.run("/usr/bin/env") == "mine\n"
    assert Path("/usr/bin/env").read_bytes() == before
    assert box.files.stat("/usr/bin/env").mode == mode
    box.files.remove("/usr/bin/env")
    assert os.path.exists("/usr/bin/env")
    assert box.run("ls /usr/bin/env 2>&1 || true").endswith("No such file or directory\n")


def test_links_lead_where_the_sandbox_sees_them_lead(box: Box) -> None:
    box.run("echo inside > /etc/only-inside; ln -s /etc/only-inside abs; ln -s ../../../../../etc/only-inside rel")
    for path in ("abs", "rel", "../../../../../../etc/only-inside"):
        assert box.read(path) == b"inside\n"
    found = box.kit.engine.read_file(ADMIN, box.sandbox.id, "/home/user/abs")
    with os.fdopen(found.descriptor, "rb") as stream:
        assert stream.read() == b"inside\n"
    box.kit.engine.write_file(ADMIN, box.sandbox.id, "/home/user/in/it", [b"x"])
    box.run("ln -s /srv dir; ln -s /srv/made there")
    box.put("dir/f")
    box.put("there")
    assert box.run("ls /srv") == "f\nmade\n"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ",
        "/proc/kcore",
        "/proc/1/root/etc/passwd",
        "/proc/1/cwd/etc/passwd",
        "/proc/sys/kernel/core_pattern",
        "/dev/zero",
        "/dev/null",
        "/dev/ptmx",
        "/proc/self/fd/0",
    ],
)
def test_nothing_that_the_kernel_makes_up_is_opened(box: Box, path: str) -> None:
    for action in (box.read, box.put):
        with pytest.raises(FluxError) as error:
            action(path)
        assert error.value.code in (Code.INVALID, Code.DENIED, Code.NOT_FOUND), error.value.message


def test_what_is_mounted_is_not_removed(box: Box) -> None:
    for path in ("/proc", "/dev", "/dev/null", "/proc/sys", "/sys"):
        with refused(Code.DENIED):
            box.files.remove(path)
        with refused(Code.DENIED):
            box.files.move(path, "taken")
    box.put("f")
    with refused(Code.DENIED):
        box.files.move("f", "/dev/null")
    assert "null" in box.run("ls /dev")
    assert "proc" in [entry.name for entry in box.files.entries("/")]


def test_writes_of_both_sides_are_seen_by_a_watch(box: Box) -> None:
    box.run("mkdir w")
    watch = box.files.watch("w", recursive=True)
    try:
        box.put("w/mine")
        until(watch, ("create", "mine"), ("write", "mine"))
        box.run("echo 1 > w/theirs; chmod 600 w/theirs; mv w/theirs w/moved; rm w/mine; mkdir -p w/d/e; echo > w/d/e/f")
        until(
            watch,
            *[("create", "theirs"), ("write", "theirs"), ("chmod", "theirs"), ("rename", "theirs")],
            *[("create", "moved"), ("remove", "mine"), ("create", "d"), ("create", "d/e"), ("create", "d/e/f")],
        )
        box.put("w/d/e/f")
        until(watch, ("write", "d/e/f"))
    finally:
        watch.close()


def test_a_directory_of_the_template_is_watched_on_when_it_is_copied_up(box: Box) -> None:
    watch = box.files.watch("/usr/share", recursive=False)
    deep = box.files.watch("/usr/local", recursive=True)
    try:
        box.run("echo 1 > /usr/share/first")
        until(watch, ("create", "first"), ("write", "first"))
        box.put("/usr/share/second")
        box.run("echo 2 >> /usr/share/second; mv /usr/share/second /usr/share/third; rm /usr/share/first")
        until(watch, ("create", "second"), ("rename", "second"), ("create", "third"), ("remove", "first"))
        box.put("/usr/local/bin/new")
        box.run("echo 2 >> /usr/local/bin/new")
        until(deep, ("create", "bin/new"), ("write", "bin/new"))
    finally:
        watch.close()
        deep.close()


def test_a_file_of_the_template_that_is_copied_up_is_told(box: Box) -> None:
    watch = box.files.watch("/etc")
    try:
        box.run("echo x >> /etc/passwd")
        until(watch, ("write", "passwd"))
        box.put("/etc/group", b"root:x:0:\n")
        until(watch, ("write", "group"))
    finally:
        watch.close()


def test_an_acknowledged_write_is_in_what_is_saved_and_a_watch_ends_with_the_execution(box: Box) -> None:
    box.put("kept", b"kept")
    watch = box.files.watch("~")
    node = box.kit.engine.node
    execution = Execution(generation=1, pod_uid="p1")
    try:
        node.suspend(Suspend(sandbox_id=box.sandbox.id, node_store_id=node.store_id, execution=execution))
        assert select.select([watch.end_descriptor], [], [], SECONDS)[0]
    finally:
        watch.close()
    with refused(Code.ILLEGAL_STATE):
        box.put("late")
