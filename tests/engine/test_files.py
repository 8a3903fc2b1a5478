"""Files of the real sandbox, and baselines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flux.core.access import Actor, Role
from flux.core.errors import Code
from flux.core.sandbox import Sandbox
from tests.engine.kit import ADMIN, Kit, refused


def read(kit: Kit, sandbox: Sandbox, path: str) -> bytes:
    found = kit.engine.read_file(ADMIN, sandbox.id, path)
    with os.fdopen(found.descriptor, "rb") as file:
        return file.read()


def test_one_file_has_the_sandbox_s_name_and_the_workspace_s(kit: Kit, sandbox: Sandbox) -> None:
    assert kit.engine.write_file(ADMIN, sandbox.id, "/work/d/f", [b"one", b"two"]).size == 6
    assert (kit.work / "d" / "f").read_bytes() == b"onetwo"
    assert read(kit, sandbox, "/work/d/f") == read(kit, sandbox, "/d/f") == b"onetwo"
    assert os.stat(kit.work / "d" / "f").st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(("path", "place"), [("/home/user/x/f", "home/x/f"), ("/tmp/f", "tmp/f")])
def test_private_places_are_the_sandbox_s_own(kit: Kit, sandbox: Sandbox, path: str, place: str) -> None:
    kit.engine.write_file(ADMIN, sandbox.id, path, [b"x"])
    assert (kit.state / "sandboxes" / sandbox.id / place).read_bytes() == b"x"
    assert read(kit, sandbox, path) == b"x"
    assert os.listdir(kit.work) == []


def test_a_file_is_replaced_whole_and_keeps_its_mode(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "f").write_text("long old content")
    (kit.work / "f").chmod(0o750)
    kit.engine.write_file(ADMIN, sandbox.id, "/f", [b"new"])
    assert (kit.work / "f").read_text() == "new"
    assert os.stat(kit.work / "f").st_mode & 0o7777 == 0o750
    kit.engine.write_file(ADMIN, sandbox.id, "/f", [b"new"], 0o600)
    assert os.stat(kit.work / "f").st_mode & 0o7777 == 0o600


def test_a_source_that_fails_leaves_the_old_file_and_nothing_else(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "f").write_text("old")

    def broken() -> object:
        yield b"new"
        raise ConnectionResetError

    with refused(Code.UNAVAILABLE):
        kit.engine.write_file(ADMIN, sandbox.id, "/f", broken())  # type: ignore[arg-type]
    assert os.listdir(kit.work) == ["f"]
    assert (kit.work / "f").read_text() == "old"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("secret")
    return path


@pytest.mark.parametrize("target", ["{secret}", "../secret", "/proc/self/environ", "/etc/passwd"])
def test_no_link_leads_out(kit: Kit, sandbox: Sandbox, secret: Path, target: str) -> None:
    (kit.work / "l").symlink_to(target.format(secret=secret))
    (kit.work / "up").symlink_to("..")
    for path in ("/l", "/up/secret"):
        with refused(Code.INVALID):
            read(kit, sandbox, path)
    with refused(Code.INVALID):
        kit.engine.write_file(ADMIN, sandbox.id, "/l", [b"x"])
    with refused(Code.INVALID):
        kit.engine.write_file(ADMIN, sandbox.id, "/up/secret", [b"x"])
    with refused(Code.INVALID):
        kit.engine.list_directory(ADMIN, sandbox.id, "/up")
    assert secret.read_text() == "secret"


def test_a_link_that_stays_inside_is_followed(kit: Kit, sandbox: Sandbox) -> None:
    (kit.work / "d").mkdir()
    (kit.work / "d" / "f").write_text("x")
    (kit.work / "l").symlink_to("d/f")
    assert read(kit, sandbox, "/l") == b"x"


@pytest.mark.parametrize("path", ["relative", "", "/a/../b", "/a\0b", "/", "/d", "/fifo"])
def test_what_is_no_file(kit: Kit, sandbox: Sandbox, path: str) -> None:
    (kit.work / "d").mkdir()
    os.mkfifo(kit.work / "fifo")
    with refused(Code.INVALID):
        read(kit, sandbox, path)
    with refused(Code.INVALID):
        kit.engine.write_file(ADMIN, sandbox.id, path, [b"x"])


def test_what_is_not_there(kit: Kit, sandbox: Sandbox) -> None:
    with refused(Code.NOT_FOUND):
        read(kit, sandbox, "/nothing")
    with refused(Code.NOT_FOUND):
        kit.engine.list_directory(ADMIN, sandbox.id, "/nothing")
    with refused(Code.INVALID):
        kit.engine.write_file(ADMIN, sandbox.id, "/f", [b"x"], 0o10000)


def test_names_of_any_bytes_are_listed(kit: Kit, sandbox: Sandbox) -> None:
    for name in ("b", "a\n", "\udcff"):
        kit.engine.write_file(ADMIN, sandbox.id, f"/{name}", [b"x"])
    assert [entry.name for entry in kit.engine.list_directory(ADMIN, sandbox.id, "/")] == ["a\n", "b", "\udcff"]


def test_a_reviewer_reads_and_writes_nothing(kit: Kit, sandbox: Sandbox) -> None:
    actor = Actor(name="rev", role=Role.REVIEWER, key_id="ky1")
    kit.engine.list_directory(actor, sandbox.id, "/")
    with refused(Code.DENIED):
        kit.engine.write_file(actor, sandbox.id, "/f", [b"x"])


def test_changes_since_the_baseline_go_by_content(kit: Kit, sandbox: Sandbox) -> None:
    for name in ("same", "edit", "gone"):
        (kit.work / name).write_text("AAAA")
    with refused(Code.CONFLICT):
        kit.engine.changes(ADMIN, sandbox.id)
    made = kit.engine.baseline(ADMIN, sandbox.id)
    assert (made.entries, made.size) == (4, 12)
    (kit.work / "same").write_text("AAAA")
    (kit.work / "edit").write_text("BBBB")
    os.utime(kit.work / "edit", (1_000_000_000, 1_000_000_000))
    (kit.work / "gone").unlink()
    (kit.work / "new").mkdir()
    found = kit.reopen().changes(ADMIN, sandbox.id)
    assert [change.path for change in found.added] == ["/new"]
    assert [change.path for change in found.modified] == ["/edit"]
    assert [change.path for change in found.deleted] == ["/gone"]
    assert found.unchanged == 2
    assert [change.path for change in kit.engine.changes(ADMIN, sandbox.id, "/edit").every()] == ["/edit"]
    assert kit.get(sandbox.id).baseline_at == kit.clock.wall()
    kit.engine.baseline(ADMIN, sandbox.id)
    assert kit.engine.changes(ADMIN, sandbox.id).every() == []
