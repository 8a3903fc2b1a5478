"""What an apply keeps, what a revert makes of it, and what becomes of both when something is in the way."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from flux.core.changeset import Changes
from flux.core.errors import Code, FluxError
from flux.core.plan import revertible
from flux.failpoints import Point, armed
from flux.testing.crash import die, in_child
from flux.trees import journal
from flux.trees.apply import Applied
from flux.trees.files import SystemFiles
from flux.trees.inverse import stage_inverse
from flux.trees.trash import drop
from tests.trees.kit import Staging, World, differences, look

LONG = "n" * 255


def shell(text: str, top: Path) -> None:
    subprocess.run(["bash", "-ec", text], cwd=top, check=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_state_directory_elsewhere(world: World, memory: Path) -> None:
    """The area lies in the workspace, contents are copied both ways, and nothing is left behind."""
    shell(
        "echo a >f; ln f f2; mkdir -p d/e; echo b >d/e/g; truncate -s 1M d/hole; mkfifo d/p; ln -s x d/l",
        world.workspace,
    )
    before = world.look()
    time = world.workspace.stat().st_mtime_ns
    staging = world.speculate(
        lambda run: shell("rm -r d; echo c >>f; truncate -s 2M new; echo x >>new; mkdir sub; mv f2 sub/f2", run),
        state=memory,
    )
    assert staging.apply() == Applied(True)
    assert differences(world.look(), staging.expected) == {}
    assert (world.workspace / "new").stat().st_blocks < 1000, "holes stay holes"
    inverse = staging.inverse()
    inverse.apply()
    assert differences(world.look(), before) == {}
    assert (world.workspace / "d/hole").stat().st_blocks < 100
    assert world.workspace.stat().st_mtime_ns != time, "its entries changed"


def test_the_root_s_time_stays_if_nothing_in_it_changed(world: World, memory: Path) -> None:
    shell("mkdir d; echo a >d/f; touch -d @77 .", world.workspace)
    for name, state in [("cs1", memory), ("cs2", None)]:
        staging = world.speculate(lambda run, name=name: shell(f"echo {name} >d/f", run), name, state)
        staging.apply()
        assert world.workspace.stat().st_mtime == 77


@pytest.mark.root
def test_nothing_is_inherited_from_the_workspace_s_root(world: World, memory: Path) -> None:
    shell("setfacl -d -m u:1:rwx .; chgrp 5 .; chmod 2770 .; echo a >f; mkdir d", world.workspace)
    change = (
        "umask 022; echo b >f; setfacl -b f; echo c >g; setfacl -b g; mkdir e; setfacl -bk e; chmod 755 e; chgrp 0 e g"
    )
    staging = world.speculate(lambda run: shell(f"{change}; mkfifo e/p; ln -s x e/l; mkdir d/sub", run), state=memory)
    staging.apply()
    assert differences(world.look(), staging.expected) == {}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_more_than_may_be_kept(world: World, memory: Path, elsewhere: bool) -> None:
    shell("head -c 5000 /dev/zero >f; head -c 5000 /dev/zero >g", world.workspace)
    staging = world.speculate(lambda run: shell("rm f g; echo x >h", run), state=memory if elsewhere else None)
    assert revertible(staging.changes, 10_000, same_mount=not elsewhere) == (True, None)
    assert revertible(staging.changes, 9_999, same_mount=not elsewhere)[0] is False
    applied = staging.apply(revert_bytes=9_999)
    assert not applied.revertible
    assert "10000 bytes" in (applied.reason or "")
    assert sorted(os.listdir(staging.path)) == ["blobs", "journal"]
    assert sorted(os.listdir(world.workspace)) == ["h"]
    unstaged = _inverse(staging)[1]
    assert [item.path for item in unstaged] == ["/f", "/g"]


def _inverse(staging: Staging) -> tuple[Changes, list[object]]:
    target = staging.world.changeset("inverse", staging.path.parent)
    directory = os.open(staging.path, os.O_RDONLY)
    blobs = os.open(target.path / "blobs", os.O_RDONLY)
    try:
        changes, unstaged, _ = stage_inverse(directory, Changes.of(staging.changes, unchanged=0), blobs, SystemFiles())
        return changes, list(unstaged)
    finally:
        os.close(directory)
        os.close(blobs)


def test_a_socket_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(world.workspace)
    server.bind("s")
    server.listen()
    before = world.look()
    staging = world.speculate(lambda run: shell("rm s; echo x >s", run))
    staging.apply()
    staging.inverse().apply()
    drop_trash(staging)
    assert differences(world.look(), before) == {}
    client = socket.socket(socket.AF_UNIX)
    client.connect("s")
    for opened in (client, server):
        opened.close()
    assert not revertible(staging.changes, 1, same_mount=False)[0]


def drop_trash(staging: Staging) -> None:
    """Drop what a reverted apply kept."""
    directory = os.open(staging.path, os.O_RDONLY)
    drop(staging.world.files, directory)
    os.close(directory)


def test_a_revert_of_a_revert(world: World) -> None:
    shell("echo a >f; mkdir d; echo b >d/g; ln d/g h", world.workspace)
    staging = world.speculate(lambda run: shell("echo c >f; rm -r d; mkdir n; echo n >n/n; chmod 600 h", run))
    before, after = world.look(), staging.expected
    staging.apply()
    back = staging.inverse("cs2")
    back.apply()
    drop_trash(staging)
    assert differences(world.look(), before) == {}
    again = back.inverse("cs3")
    again.apply()
    drop_trash(back)
    assert differences(world.look(), after) == {}


def test_a_removed_name_joins_the_others_again(world: World) -> None:
    """What remains of a group is not changed by a name that goes, and need not be among the changes."""
    shell("echo a >f; ln f g; ln f h; mkdir d; ln f d/i; ln f typed; echo z >z", world.workspace)
    before = world.look()
    staging = world.speculate(lambda run: shell("rm g; rm -r d; rm typed; mkdir typed", run))
    staging.changes = [change for change in staging.changes if change.location not in ("/f", "/h")]
    staging.apply()
    assert differences(world.look(), staging.expected) == {}
    inverse = staging.inverse()
    inverse.apply()
    assert differences(world.look(), before) == {}
    staging = world.speculate(lambda run: shell("rm g", run), "cs3")
    staging.changes = [change for change in staging.changes if change.location == "/g"]
    staging.apply()
    again = staging.inverse("cs4")
    (world.workspace / "h").write_text("mine\n")
    with pytest.raises(FluxError) as caught:
        again.apply()
    assert caught.value.code is Code.CONFLICT
    again.scope = "touched"
    with pytest.raises(FluxError) as caught:
        again.apply()
    assert caught.value.details["conflicts"][0]["path"] in ("/d/i", "/f", "/h", "/typed")


LATER = {
    "an added file": ("echo mine >new/f", "/new/f", "content"),
    "an added file by its mode": ("chmod 600 new/f", "/new/f", "attributes"),
    "a modified file": ("echo mine >f", "/f", "content"),
    "a modified file of the same size and time": (
        "touch -r f ../t; printf C | dd of=f conv=notrunc status=none; touch -r ../t f",
        "/f",
        "content",
    ),
    "an entry in a directory that goes again": ("echo mine >new/mine", "/new/mine", "added"),
    "a deep entry in a directory that goes again": ("mkdir new/m; echo mine >new/m/n", "/new/m", "added"),
    "a name that comes back": ("echo mine >gone", "/gone", "added"),
    "a mode": ("chmod 640 mode", "/mode", "attributes"),
}


@pytest.mark.parametrize("scope", ["all", "touched"])
@pytest.mark.parametrize("name", LATER)
def test_a_later_edit_is_a_conflict(world: World, name: str, scope: str) -> None:
    edit, path, reason = LATER[name]
    shell("echo a >f; echo b >gone; echo d >mode; chmod 644 mode", world.workspace)
    staging = world.speculate(lambda run: shell("echo c >f; rm gone; mkdir new; echo n >new/f; chmod 600 mode", run))
    staging.apply()
    shell(edit, world.workspace)
    before = world.look(directory_times=True)
    inverse = staging.inverse()
    inverse.scope = scope
    with pytest.raises(FluxError) as caught:
        inverse.apply()
    assert caught.value.code is Code.CONFLICT
    found = {item["path"]: item["reason"] for item in caught.value.details["conflicts"]}
    assert found[path] == reason
    assert differences(_without_links(world.look(directory_times=True)), _without_links(before)) == {}


def _without_links(facts: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {path: (*fact[:4], *fact[5:]) for path, fact in facts.items()}


def test_an_untouched_edit_is_none(world: World) -> None:
    shell("echo a >f; echo b >other", world.workspace)
    staging = world.speculate(lambda run: shell("echo c >f", run))
    staging.apply()
    shell("echo mine >other; echo mine >more", world.workspace)
    staging.inverse().apply()
    assert [(world.workspace / name).read_text() for name in ("f", "other", "more")] == ["a\n", "mine\n", "mine\n"]


def test_trash_that_was_written_to_is_refused(world: World) -> None:
    """A process that had the file open before the apply goes on writing to what is kept of it."""
    shell("echo a >f", world.workspace)
    with (world.workspace / "f").open("a") as late:
        staging = world.speculate(lambda run: shell("echo b >f", run))
        staging.apply()
        late.write("late")
    inverse = staging.inverse()
    with pytest.raises(FluxError) as caught:
        inverse.apply()
    assert caught.value.details["reason"] == "digest_mismatch"
    assert (world.workspace / "f").read_text() == "b\n"


def test_killed_while_keeping_and_reverted_all_the_same(world: World, memory: Path) -> None:
    shell("echo a >f; mkdir d; echo b >d/g", world.workspace)
    before = world.look()
    for name, state in [("cs1", None), ("cs3", memory)]:
        staging = world.speculate(lambda run: shell("echo c >f; rm -r d", run), name, state)
        assert (
            in_child(staging.apply, lambda point: die(point) if point is Point.APPLY_CLEAN else None) == -signal.SIGKILL
        )
        assert staging.recover(committed=True).outcome == "committed"
        inverse = staging.inverse(f"{name}back")
        inverse.apply()
        drop_trash(staging)
        assert differences(world.look(), before) == {}


def test_hostile_names_and_depth(world: World) -> None:
    top = os.fsencode(world.workspace)
    names = [b"new\nline", b"\xff\xfe", b"-rf", b"*", b"$(id)", b"a;b", b"two  spaces", b"\x1b\x07\r", LONG.encode()]
    names += ["é".encode(), "e\u0301".encode(), b" ", b"%2D", b"a=b,c"]
    for name in names[::2]:
        Path(os.fsdecode(os.path.join(top, name))).write_text("old")

    def change(run: Path) -> None:
        for number, name in enumerate(names):
            path = Path(os.fsdecode(os.path.join(os.fsencode(run), name)))
            if number % 4 == 0:
                path.unlink()
            else:
                path.write_text(f"new {number}")
        deep = run / Path(*["d"] * 900)
        here = os.open(run, os.O_RDONLY)
        for _ in deep.relative_to(run).parts:
            os.mkdir("d", dir_fd=here)
            here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
            os.close(above)
        os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=here))
        os.close(here)
        os.symlink(b"\xff/" + b"t" * 200, os.path.join(os.fsencode(run), b"\xfelink"))

    before = world.look()
    staging = world.speculate(change)
    staging.apply()
    assert differences(world.look(), staging.expected) == {}
    staging.inverse().apply()
    drop_trash(staging)
    assert differences(world.look(), before) == {}


def test_a_deep_tree_can_be_taken_back(world: World) -> None:
    def change(run: Path) -> None:
        shell("mkdir -p " + "d/" * 900 + "; echo x >" + "d/" * 900 + "leaf; echo y >f", run)

    staging = world.speculate(change)
    before = world.look(directory_times=True)

    def fail(point: Point) -> None:
        if point is Point.APPLY_COMMIT:
            raise OSError(errno.EIO, "input/output error")

    with pytest.raises(FluxError), armed(fail):
        staging.apply()
    assert differences(world.look(directory_times=True), before) == {}


def test_large_contents_are_streamed(world: World, memory: Path) -> None:
    """A changeset of 64 MiB is applied by a process that may not have 40 MiB more than it has."""

    def change(run: Path) -> None:
        for number in range(4):
            shell(f"head -c 16M /dev/urandom >f{number}", run)

    staging = world.speculate(change, state=memory)

    def bounded() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 40 * 2**20, resource.RLIM_INFINITY))
        staging.apply()

    assert in_child(bounded) == 0
    assert differences(world.look(), staging.expected) == {}


def test_a_commit_that_fails_is_taken_back(world: World) -> None:
    shell("echo a >f", world.workspace)
    before = world.look(directory_times=True)

    class OwnError(Exception):
        pass

    def commit() -> None:
        assert (world.workspace / "f").read_text() == "b\n"
        raise OwnError

    staging = world.speculate(lambda run: shell("echo b >f; echo n >n", run))
    for failure in (OwnError, KeyboardInterrupt):

        def interrupted(failure: type[BaseException] = failure) -> None:
            raise failure

        with pytest.raises(failure):
            staging.apply(commit if failure is OwnError else interrupted)
        assert differences(world.look(directory_times=True), before) == {}
    staging.apply()
    assert differences(world.look(), staging.expected) == {}


class ProjectQuota(SystemFiles):
    """Renames between the state directory and the workspace are refused, as between two quota projects."""

    def __init__(self, root: int) -> None:
        self._root = os.fstat(root).st_ino

    def rename_new(self, step: Point, source_directory: int, source_name: str, directory: int, name: str) -> None:
        if os.fstat(directory).st_ino == self._root and not source_name.isdigit():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename_new(step, source_directory, source_name, directory, name)


def test_one_mount_that_cannot_rename_across(world: World) -> None:
    shell("echo a >f", world.workspace)
    world.files = ProjectQuota(world.root)
    staging = world.speculate(lambda run: shell("echo b >f; mkdir d; echo n >d/n", run))
    assert staging.apply().revertible
    assert differences(world.look(), staging.expected) == {}
    record = _read_journal(staging)
    assert record is not None
    assert record.begun.place == "workspace"


def _read_journal(staging: Staging) -> journal.Journal | None:
    directory = os.open(staging.path, os.O_RDONLY)
    try:
        return journal.read(directory)
    finally:
        os.close(directory)


def test_a_torn_record_was_never_written(world: World) -> None:
    shell("echo a >f", world.workspace)
    staging = world.speculate(lambda run: shell("echo b >f", run))

    def stop(point: Point) -> None:
        if point is Point.APPLY_INSTALL:
            die(point)

    assert in_child(staging.apply, stop) == -signal.SIGKILL
    record = _read_journal(staging)
    assert record is not None and record.prepared is not None
    path = staging.path / "journal"
    data = path.read_bytes()
    for end in range(record.end - 1, len(data[: record.end]) - 12, -1):
        path.write_bytes(data[:end])
        torn = _read_journal(staging)
        assert torn is not None and torn.prepared is None
    path.write_bytes(data[: record.end - 1] + bytes([data[record.end - 1] ^ 1]) + data[record.end :])
    torn = _read_journal(staging)
    assert torn is not None and torn.prepared is None
    path.write_bytes(data[:40])
    with pytest.raises(FluxError) as caught:
        _read_journal(staging)
    assert caught.value.code is Code.INTERNAL
    path.write_bytes(data)
    assert staging.recover().outcome == "rolled_back"


def test_a_blob_with_another_name_is_nobody_s_to_change(world: World) -> None:
    staging = world.speculate(lambda run: shell("echo a >f; chmod 751 f; touch -d @5 f", run))
    other = world.home / "other"
    os.link(staging.path / "blobs/000000", other)
    before = other.stat()
    staging.apply()
    assert differences(world.look(), staging.expected) == {}
    after = other.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert after.st_ino != (world.workspace / "f").stat().st_ino


def test_parents_are_created(world: World) -> None:
    staging = world.speculate(lambda run: shell("mkdir -p a/b/c; echo x >a/b/c/f; echo y >a/b/g", run))
    staging.changes = [change for change in staging.changes if change.location in ("/a/b/c/f", "/a/b/g")]
    staging.paths = ("/a/b/c/f", "/a/b/g")
    staging.apply()
    assert (world.workspace / "a/b/c/f").read_text() == "x\n"
    assert look(world.workspace)["/a/b"][1] == "0o755"


def test_an_undeleted_entry_in_a_deleted_directory_is_refused(world: World) -> None:
    shell("mkdir d; echo a >d/f; echo b >d/g", world.workspace)
    staging = world.speculate(lambda run: shell("rm -r d", run))
    staging.changes = [change for change in staging.changes if change.location != "/d/g"]
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert caught.value.code is Code.INVALID
    assert (world.workspace / "d/g").read_text() == "b\n"
