"""Which engine makes the copy, why others were passed over, and what is refused before anything is copied."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.core.requests import CopyEngine
from flux.failpoints import Point, armed
from flux.ports.substrate import Overlay
from tests.trees.arena import Arena, facts, prove
from tests.trees.filesystems import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts overlays and file systems as root")


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path)


def refused(arena: Arena, engine: CopyEngine) -> FluxError:
    with pytest.raises(FluxError) as caught:
        arena.prepare(engine)
    assert not list((arena.state / "scratch").iterdir())
    return caught.value


def test_overlay_is_preferred_on_an_ordinary_file_system(arena: Arena) -> None:
    run_tree = arena.prepare()
    assert run_tree.engine == "overlay"
    assert run_tree.reason == "snapshot: the workspace is not on btrfs"
    assert isinstance(run_tree.tree, Overlay)
    assert run_tree.tree.lower == (str(arena.workspace),) and run_tree.tree.throwaway
    arena.close()


def test_the_layers_root_is_the_workspaces_root(arena: Arena) -> None:
    arena.shell("chmod 2750 .; chown 5:6 .; setfattr -n user.a -v 1 .; setfacl -d -m u:7:rx .; touch -d @1000000000 .")
    assert not prove(arena, "true", "overlay").changes.every()
    run_tree = arena.prepare("overlay")
    assert isinstance(run_tree.tree, Overlay)
    assert facts(Path(run_tree.tree.upper))["/"] == facts(arena.workspace)["/"]
    assert os.stat(run_tree.tree.upper).st_mtime == 1_000_000_000
    arena.close()


def test_a_snapshot_is_preferred_on_btrfs(tmp_path: Path) -> None:
    with mounted(tmp_path, ("btrfs",)) as places:
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(places["btrfs"] / "workspace")], check=True)
        arena = Arena(places["btrfs"])
        run_tree = arena.prepare()
        assert (run_tree.engine, run_tree.reason) == ("snapshot", "")
        arena.close()
        subprocess.run(["btrfs", "-q", "subvolume", "delete", str(places["btrfs"] / "workspace")], check=True)
        (places["btrfs"] / "workspace").mkdir()
        assert arena.prepare().reason == "snapshot: the workspace is not a btrfs subvolume"
        arena.close()
        elsewhere = Arena(places["btrfs"], state=tmp_path / "state")
        assert "snapshot" in refused(elsewhere, "snapshot").message


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        ("mkdir d; setfattr -n trusted.overlay.opaque -v y d", "/d carries extended attributes of an overlay"),
        ("touch f; setfattr -n user.overlay.origin -v y f", "/f carries extended attributes of an overlay"),
        ("mknod w c 0 0", "/w is a character device 0:0"),
    ],
)
def test_overlay_is_passed_over_where_it_would_lie(arena: Arena, setup: str, reason: str) -> None:
    arena.shell(setup)
    arena.shell("echo a>edited")
    run_tree = arena.prepare()
    assert run_tree.engine == "copy"
    assert f"overlay: {reason}" in run_tree.reason
    arena.close()
    error = refused(arena, "overlay")
    assert error.code is Code.NOT_APPLICABLE and reason in error.message
    prove(arena, "echo b>edited; mkdir new", "copy")


def test_a_state_directory_inside_the_workspace_is_no_place_for_a_layer(tmp_path: Path) -> None:
    state = tmp_path / "workspace" / ".flux"
    (tmp_path / "workspace").mkdir()
    arena = Arena(tmp_path, state=state)
    arena.shell("echo a>f")
    run_tree = arena.prepare(skip=("/.flux",))
    assert run_tree.engine == "copy"
    assert "overlay: the state directory lies inside the workspace" in run_tree.reason
    found = arena.run("echo b>f; echo c>g")
    arena.close()
    assert [change.location for change in found.changes.every()] == ["/f", "/g"]
    assert not found.base_changes


def test_an_engine_that_is_not_possible_is_an_error_when_asked_for(arena: Arena) -> None:
    arena.shell("echo a>f")
    for engine in ("snapshot", "reflink"):
        error = refused(arena, engine)
        assert error.code is Code.NOT_APPLICABLE
        assert engine in error.message


def test_a_reflink_copy_shares_its_content(tmp_path: Path) -> None:
    with mounted(tmp_path, ("xfs",)) as places:
        arena = Arena(places["xfs"])
        arena.shell("head -c 30000000 /dev/urandom >big")
        free = os.statvfs(places["xfs"]).f_bfree * os.statvfs(places["xfs"]).f_frsize
        run_tree = arena.prepare("reflink")
        after = os.statvfs(places["xfs"]).f_bfree * os.statvfs(places["xfs"]).f_frsize
        assert run_tree.engine == "reflink" and free - after < 5_000_000
        arena.close()


def test_a_workspace_over_the_limit_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    arena = Arena(tmp_path, max_bytes=1000)
    arena.shell("head -c 1000 /dev/zero >f; ln f g; ln -s f s")
    arena.prepare().close()
    os.close(arena.root)
    arena.shell("echo>h")
    error = refused(arena, "auto")
    assert error.code is Code.TOO_LARGE
    assert error.details == {"measured_bytes": 1001, "limit_bytes": 1000}


def test_a_path_that_is_none_is_refused(arena: Arena) -> None:
    from flux.trees.run import prepare
    from flux.trees.workspace import Workspace

    with pytest.raises(FluxError) as caught:
        prepare(
            Workspace("bound", str(arena.workspace)), -1, "/nowhere",
            paths=["../x"], requested="auto", max_bytes=1, files=arena.files,
        )  # fmt: skip
    assert caught.value.code is Code.INVALID


def test_the_probes_answer_is_remembered(arena: Arena) -> None:
    arena.prepare("overlay").close()
    os.close(arena.root)
    cache = arena.state / "probes.json"
    known = msgspec.json.decode(cache.read_bytes(), type=dict[str, str])
    assert list(known.values()) == [""]
    cache.write_bytes(msgspec.json.encode(dict.fromkeys(known, "it was tried before")))
    assert "it was tried before" in refused(arena, "overlay").message
    cache.write_bytes(b"damaged")
    assert arena.prepare().engine == "overlay"
    arena.close()


def test_a_copy_that_cannot_be_finished_leaves_nothing(arena: Arena) -> None:
    arena.shell("mkdir d; echo a>d/f; echo b>g")
    steps = 0

    def stop(point: Point) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise OSError(errno.ENOSPC, "no space")

    with armed(stop), pytest.raises(FluxError) as caught:
        arena.prepare("copy")
    assert caught.value.code is Code.EXHAUSTED
    assert not list((arena.state / "scratch").iterdir())


def test_a_copy_that_is_not_what_the_workspace_is_is_refused(arena: Arena) -> None:
    arena.shell("echo a>f; chmod 640 f")

    class Forgetful(type(arena.files)):  # type: ignore[misc]
        """Loses permission bits, as some file systems do."""

        def set_mode(self, step: Point, directory: int, name: str, mode: int) -> None:
            super().set_mode(step, directory, name, mode & ~0o077 if name == "f" else mode)

    arena.files = Forgetful()
    error = refused(arena, "copy")
    assert error.code is Code.NOT_APPLICABLE and "/f (mode)" in error.message


def test_a_workspace_that_changes_while_it_is_copied_is_not_the_copys_fault(arena: Arena) -> None:
    arena.shell("echo a>f; echo b>g")
    done = False

    def meddle(point: Point) -> None:
        nonlocal done
        if not done:
            done = True
            arena.shell("chmod 600 f; rm g; echo n>new")

    with armed(meddle):
        arena.prepare("copy")
    found = arena.run("echo c>mine")
    arena.close()
    assert found.base_changes == ["/f", "/g", "/new"]
    assert [change.location for change in found.changes.every()] == ["/mine"]


@pytest.fixture
def mounts(arena: Arena) -> Iterator[Arena]:
    arena.shell("mkdir -p d/bind source; echo inside>source/file; echo hidden>d/bind/covered; touch d/single; echo a>f")
    commands = [
        ["mount", "--bind", str(arena.workspace / "source"), str(arena.workspace / "d" / "bind")],
        ["mount", "--bind", str(arena.workspace / "source" / "file"), str(arena.workspace / "d" / "single")],
    ]
    for command in commands:
        subprocess.run(command, check=True)
    yield arena
    for command in commands:
        subprocess.run(["umount", command[-1]], check=True)


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_mounts_inside_are_not_in_the_run_and_not_captured(mounts: Arena, engine: CopyEngine) -> None:
    found = mounts.speculate("cat d/bind/file 2>/dev/null >seen; echo x>d/bind/new; echo b>f", engine)
    assert [item.path for item in found.not_captured] == ["/d/bind", "/d/single"]
    assert [change.location for change in found.changes.every()] == ["/f", "/seen"]
    assert found.changes.added[0].after is not None and found.changes.added[0].after.size == 0
    assert not found.unstaged and not found.base_changes
    found = mounts.speculate("rm -rf d", engine)
    assert [change.location for change in found.changes.deleted] == ["/d"]
    assert [item.path for item in found.unstaged] == ["/d"] and "mounted" in found.unstaged[0].reason


def test_devices_there_before_survive_a_copy(arena: Arena) -> None:
    arena.shell("mknod w c 0 0; mknod n c 1 3; mknod b b 7 99; echo a>f")
    prove(arena, "echo b>f; mv n m", "copy")
    assert stat.S_ISCHR((arena.workspace / "w").lstat().st_mode)


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_closing_removes_any_depth_and_may_be_repeated(arena: Arena, engine: CopyEngine) -> None:
    run_tree = arena.prepare(engine)
    where = run_tree.tree.upper if isinstance(run_tree.tree, Overlay) else run_tree.tree
    name = "d" * 200
    subprocess.run(["bash", "-c", f"for i in $(seq 40); do mkdir {name}; cd {name}; done"], cwd=where, check=True)
    run_tree.close()
    arena.close()
