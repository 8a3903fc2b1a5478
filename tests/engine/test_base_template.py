"""The built-in template: the host's system, nothing else of the host, and all of it the sandbox's to change."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.errors import Code
from flux.core.requests import Approve, CreateSandbox, Decide, Exec, Speculate
from flux.core.sandbox import Sandbox
from flux.engine.engine import Engine
from flux.network.sink import TunSink
from flux.substrates.procbox import etc, template
from flux.substrates.procbox.host import read_host
from flux.substrates.procbox.substrate import Procbox
from tests.engine.kit import ADMIN, Kit, refused, started

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    kit = Kit(tmp_path, Procbox(str(tmp_path / "state"), sink=TunSink()), persistent=True)
    yield kit.engine
    kit.engine.close()


@pytest.fixture
def sandbox(engine: Engine) -> Sandbox:
    return started(engine, CreateSandbox(name="box"))


def output(engine: Engine, command: str, user: str | None = None) -> str:
    result = engine.execute(ADMIN, "box", Exec(command=command, user=user))
    assert result.exit_code == 0, result.stderr.text
    return result.stdout.text.strip()


def test_without_privileges_it_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    host = msgspec.structs.replace(read_host(), privileged=False)
    with refused(Code.UNAVAILABLE):
        template.prepare(str(tmp_path), host)
    assert os.listdir(tmp_path) == []


def test_it_shows_the_hosts_system_and_nothing_else_of_it(engine: Engine, sandbox: Sandbox) -> None:
    assert sandbox.layout == "managed"
    shown = set(output(engine, "ls -A /").split())
    own = {"dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var"}
    system = {name for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32") if os.path.isdir(f"/{name}")}
    assert shown == own | system
    for directory in ("/root", "/opt", "/srv", "/mnt", "/run"):
        assert output(engine, f"ls -A {directory}") == ""
    assert output(engine, "cat /etc/shadow /etc/machine-id 2>/dev/null; ls /etc/ssh 2>/dev/null; true") == ""
    assert output(engine, "ls -A /home") == "user"
    assert output(engine, "touch ~/x && id -un", user="user") == "user"


def test_what_is_written_anywhere_stays_in_the_sandbox(engine: Engine, sandbox: Sandbox) -> None:
    output(engine, "echo 1 > /usr/local/flux-was-here; echo 2 > /opt/x; rm /usr/bin/env")
    assert not os.path.exists("/usr/local/flux-was-here")
    assert os.path.exists("/usr/bin/env")
    assert output(engine, "cat /usr/local/flux-was-here /opt/x; ls /usr/bin/env 2>/dev/null; true") == "1\n2"


def test_speculation_apply_and_revert_work_on_all_of_it(engine: Engine, sandbox: Sandbox) -> None:
    asked = Speculate(command="rm /usr/bin/env; echo 1 > /etc/new; echo 2 > /home/user/new", paths=["/usr/bin", "/etc"])
    change = engine.speculate(ADMIN, "box", asked)
    found = {each.location: each.kind for each in change.changes.every()}
    assert found == {"/usr/bin/env": "deleted", "/etc/new": "added"}
    assert [lost.entries for lost in change.changeset.discarded] == [1]
    engine.approve(ADMIN, "box", change.changeset.id, Approve())
    engine.apply(ADMIN, "box", change.changeset.id, Decide())
    assert output(engine, "cat /etc/new; ls /usr/bin/env 2>/dev/null; true") == "1"
    inverse = engine.revert(ADMIN, "box", change.changeset.id, Decide()).changeset
    engine.approve(ADMIN, "box", inverse.id, Approve())
    engine.apply(ADMIN, "box", inverse.id, Decide())
    assert output(engine, "ls /usr/bin/env /etc/new 2>/dev/null; true") == "/usr/bin/env"


def test_a_stack_that_would_copy_the_system_is_refused(engine: Engine, sandbox: Sandbox) -> None:
    parent = engine.speculate(ADMIN, "box", Speculate(command="echo 1 > /etc/new", paths=["/etc"])).changeset
    with refused(Code.NOT_APPLICABLE):
        engine.speculate(ADMIN, "box", Speculate(command="true", paths=["/etc"], parent=parent.id))


@pytest.mark.parametrize("user", ["user", "root"])
def test_both_users_have_a_login_shell_and_the_hosts_tools(engine: Engine, sandbox: Sandbox, user: str) -> None:
    login = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    assert output(engine, f"getent passwd {user} | cut -d: -f7", user=user) == login
    assert output(engine, f"{login} -lc 'id -un'", user=user) == user
    for tool in ("python3 -c 'print(1)'", "git --version", "python3 -m pip --version"):
        if os.system(f"PATH=/usr/local/bin:/usr/bin:/bin {tool} >/dev/null 2>&1") == 0:
            assert output(engine, f"{login} -lc {shlex.quote(tool)}", user=user) != ""


def test_the_user_has_the_dot_files_of_a_new_user_of_the_host(engine: Engine, sandbox: Sandbox) -> None:
    expected = sorted(name for name in etc.SKELETON if os.path.isfile(f"/etc/skel/{name}"))
    assert output(engine, "ls -A ~", user="user").split() == expected
    assert output(engine, "stat -c %U ~/.[a-z]* | sort -u", user="user") == ("user" if expected else "")


def test_an_unknown_template_names_the_built_in_one(engine: Engine) -> None:
    with refused(Code.NOT_FOUND) as error:
        engine.build_sandbox(ADMIN, CreateSandbox(template="nope"))
    assert "use base" in error.value.message
