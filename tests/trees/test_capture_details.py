"""What a capture keeps, what it only names, and what it refuses to carry."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from flux.core import manifest
from flux.core.changeset import Change
from flux.core.limits import Caps
from flux.core.requests import CopyEngine
from flux.failpoints import Point, armed
from flux.trees import _native
from flux.trees.apply import ApplyJob, apply
from flux.trees.preimages import name_of
from flux.trees.run import Capture
from tests.trees.arena import Arena, facts, prove, prove_contents
from tests.trees.filesystems import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts overlays as root")

MIB = 1024 * 1024
both = pytest.mark.parametrize("engine", ["overlay", "copy"])


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path)


def by_path(found: Capture) -> dict[str, Change]:
    return {change.location: change for change in found.changes.every()}


def let_times_pass() -> None:
    """Wait until the files are so old that a rewrite changes their times for certain, so that no scan hashes them."""
    for _ in range(16):
        _native.next_tick()


def apply_all(arena: Arena, found: Capture) -> None:
    """Apply a capture for real."""
    root, directory = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (arena.workspace, arena.state))
    try:
        job = ApplyJob(
            changeset_id="cs1", root=root, directory=directory, changes=found.changes.every(), base=found.base,
            paths=["/"], scope="all", files=arena.files,
        )  # fmt: skip
        apply(job, lambda: None)
    finally:
        os.close(root)
        os.close(directory)


@both
def test_sockets_are_skipped_and_named(arena: Arena, engine: CopyEngine) -> None:
    make = "python3 -c 'import socket,sys; [socket.socket(socket.AF_UNIX).bind(p) for p in sys.argv[1:]]' "
    arena.shell(make + "old gone; echo a>f; mkdir d")
    found = arena.speculate(f"rm gone f; {make} new f d/s; chmod 600 old", engine)
    assert [item.path for item in found.skipped] == ["/d/s", "/f", "/new"]
    assert {path: change.kind for path, change in by_path(found).items()} == {
        "/f": "deleted",
        "/gone": "deleted",
        "/old": "modified",
    }


@both
def test_what_lies_outside_the_paths_is_counted_and_dropped(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("mkdir -p in/deep out; echo a>in/f; echo b>out/g; echo c>top")
    script = "echo four>in/f; echo x>in/deep/n; echo eightby>out/g; mkdir out/d; rm top; touch out; echo>inside"
    found = arena.speculate(script, engine, paths=("/in", "/missing"))
    assert list(by_path(found)) == ["/in/deep/n", "/in/f"]
    assert [(item.entries, item.size) for item in found.discarded] == [(4, 9)]
    assert found.base.keys() == {"/in", "/in/deep", "/in/f"}
    assert found.changes.unchanged == 2


@both
def test_the_base_that_moved_meanwhile_is_named(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("echo a>both; echo b>other; echo c>mine; echo d>gone; mkdir d")
    let_times_pass()
    arena.prepare(engine)
    outside = "echo outside>both; chmod 600 other; rm gone; touch d/new"
    found = arena.run("echo run>both; echo run>mine", meanwhile=outside)
    arena.close()
    assert found.base_changes == ["/both", "/d/new", "/gone", "/other"]
    changes = by_path(found)
    assert changes["/mine"].before is not None and changes["/mine"].before.digest is not None
    # What was there before is gone, so nothing may later pass for it.
    assert changes["/both"].before is not None and changes["/both"].before.digest is None
    assert manifest.parse(found.base["/both"]).digest is None


@both
def test_touched_files_have_digests_on_both_sides_and_others_none(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("echo a>chmod; echo b>write; echo c>rm; echo d>same; echo e>left; touch -d @1000000000 *")
    let_times_pass()
    found = arena.speculate("chmod 600 chmod; echo B>write; rm rm; echo d>same", engine)
    changes = by_path(found)
    assert changes.keys() == {"/chmod", "/write", "/rm"}
    assert all(change.before is not None and change.before.digest for change in changes.values())
    assert all(change.after.digest for change in changes.values() if change.after is not None)
    known = {path for path, token in found.base.items() if manifest.parse(token).digest is not None}
    assert known == {"/chmod", "/write", "/rm", "/same"}
    assert changes["/chmod"].staged is None and found.changes.unchanged == 3


@both
def test_caps_are_exact(tmp_path: Path, engine: CopyEngine) -> None:
    arena = Arena(tmp_path, caps=Caps(file_bytes=MIB, total_bytes=4 * MIB))
    fill = "head -c {size} /dev/urandom >{name}"
    names = {"a": MIB, "b": MIB + 1, "c": MIB, "d": MIB, "e": MIB, "f": 1, "g": 0}
    found = arena.speculate("; ".join(fill.format(size=size, name=name) for name, size in names.items()), engine)
    assert {item.path: item.size for item in found.unstaged} == {"/b": MIB + 1, "/f": 1}
    assert f"larger than {MIB} bytes" in found.unstaged[0].reason
    assert f"more than {4 * MIB} bytes" in found.unstaged[1].reason
    changes = by_path(found)
    assert changes.keys() == {f"/{name}" for name in names}
    assert changes["/b"].staged is None and changes["/f"].staged is None
    found.changes.added = [change for change in found.changes.added if change.location not in ("/b", "/f")]
    prove_contents(arena, found)


def test_a_file_too_large_to_stage_is_not_even_read(arena: Arena) -> None:
    found = arena.speculate("truncate -s 4T huge", "overlay")
    assert [(item.path, item.size) for item in found.unstaged] == [("/huge", 4 << 40)]


@both
def test_moving_something_large_stages_a_reference(tmp_path: Path, engine: CopyEngine) -> None:
    arena = Arena(tmp_path, caps=Caps(file_bytes=MIB, total_bytes=MIB))
    arena.shell("mkdir d; head -c 3000000 /dev/urandom >d/big; head -c 2000000 /dev/urandom >other; echo s>d/small")
    found = arena.speculate("mv d e; mv e/big moved; cp other copied; mv other renamed; cp e/small tiny", engine)
    assert not found.unstaged
    staged = {path: change.staged for path, change in by_path(found).items() if change.staged is not None}
    assert {path: item.reference for path, item in staged.items()} == {
        "/copied": "/other",
        "/e/small": "/d/small",
        "/moved": "/d/big",
        "/renamed": "/other",
        "/tiny": "/d/small",
    }
    assert not list(arena.blobs.iterdir())
    expected = arena.bare("mv d e; mv e/big moved; cp other copied; mv other renamed; cp e/small tiny")
    apply_all(arena, found)
    assert facts(arena.workspace) == expected


@both
def test_a_copy_of_a_large_file_that_the_run_left_alone_is_a_reference(tmp_path: Path, engine: CopyEngine) -> None:
    arena = Arena(tmp_path, caps=Caps(file_bytes=MIB, total_bytes=MIB))
    arena.shell("head -c 3000000 /dev/urandom >big")
    found = arena.speculate("cp big other", engine)
    change = by_path(found)["/other"]
    assert change.staged is not None and change.staged.reference == "/big"
    assert manifest.parse(found.base["/big"]).digest is not None


@both
def test_the_names_of_one_file_share_one_blob(tmp_path: Path, engine: CopyEngine) -> None:
    arena = Arena(tmp_path, caps=Caps(total_bytes=MIB))
    arena.shell("echo a>old; ln old older")
    found = arena.speculate("head -c 600000 /dev/urandom >f; ln f g; ln f h; echo b>>old", engine)
    assert not found.unstaged
    assert len(list(arena.blobs.iterdir())) == 2
    assert len({change.staged.blob for change in found.changes.added if change.staged is not None}) == 1


@both
def test_blobs_are_private_whatever_the_run_made_them(arena: Arena, engine: CopyEngine) -> None:
    arena.speculate("cp /bin/true t; chown 5:5 t; chmod 6755 t; echo a>f; chmod 000 f; echo b>g; chmod 666 g", engine)
    blobs = [path.lstat() for path in arena.blobs.iterdir()]
    assert len(blobs) == 3
    assert {(blob.st_uid, stat.S_IMODE(blob.st_mode), blob.st_nlink) for blob in blobs} == {(0, 0o600, 1)}


@both
def test_holes_are_kept(arena: Arena, engine: CopyEngine) -> None:
    arena.speculate("truncate -s 10M f; printf x | dd of=f bs=1 seek=5M conv=notrunc status=none", engine)
    (blob,) = arena.blobs.iterdir()
    assert blob.stat().st_size == 10 * MIB and blob.stat().st_blocks * 512 < MIB


def test_holes_are_kept_where_a_blob_has_to_be_copied(tmp_path: Path) -> None:
    with mounted(tmp_path, ("tmpfs",)) as places:
        arena = Arena(tmp_path, caps=Caps())
        arena.blobs = places["tmpfs"] / "blobs"
        arena.blobs.mkdir()
        arena.shell("echo a>f; ln f g")
        script = "truncate -s 10M s; printf x | dd of=s bs=1 seek=5M conv=notrunc status=none; echo>>f"
        found = arena.speculate(script, "overlay")
        prove_contents(arena, found)
        assert all(path.stat().st_blocks * 512 < MIB for path in arena.blobs.iterdir())


@both
def test_texts_that_change_or_go_are_kept_for_diffs(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("echo one>changed; echo two>gone; echo three>mode; printf 'a\\0b'>binary; cp gone twin; echo five>link")
    arena.shell("touch empty")
    script = "echo x>>changed; rm gone twin; chmod 600 mode; echo>>binary; ln -sf x link; echo>>empty"
    found = arena.speculate(script, engine)
    kept = {path.name: path.read_text() for path in arena.preimages.iterdir()}
    before = {path: change.before.digest for path, change in by_path(found).items() if change.before is not None}
    assert kept == {
        name_of(before["/changed"] or ""): "one\n",
        name_of(before["/gone"] or ""): "two\n",
        name_of(before["/link"] or ""): "five\n",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in arena.preimages.iterdir()} == {0o600}


def test_pre_images_have_a_budget_of_whole_blocks(tmp_path: Path) -> None:
    arena = Arena(tmp_path, caps=Caps(preimage_bytes=3 * 4096))
    arena.shell("printf eightbyt>a; yes | head -c 8193 >b; yes | head -c 4097 >c; printf xy>d")
    arena.speculate("rm a b c d", "overlay")
    assert sorted(path.stat().st_size for path in arena.preimages.iterdir()) == [8, 4097]


@both
def test_a_full_disk_while_staging_is_an_error(arena: Arena, engine: CopyEngine) -> None:
    def stop(point: Point) -> None:
        if point is Point.STAGE:
            raise OSError(errno.ENOSPC, "no space")

    with armed(stop), pytest.raises(OSError, match="no space"):
        arena.speculate("echo a>f", engine)


@both
def test_a_commit_lands_as_a_whole(arena: Arena, engine: CopyEngine) -> None:
    arena.shell(
        "git init -q .; git config user.email a@b; git config user.name n; mkdir d; seq 200 >d/f; git add .; "
        "git commit -qm one; git repack -qad"
    )
    found = arena.speculate("sed -i s/7/seven/ d/f; git mv d e; git commit -qam two; git tag t; git gc -q", engine)
    assert not found.unstaged
    apply_all(arena, found)
    arena.shell('git fsck --strict && test -z "$(git status --porcelain)" && git show t:e/f | grep -q seven')
    assert (arena.workspace / "e" / "f").exists()


@both
def test_a_database_lands_with_its_log(arena: Arena, engine: CopyEngine) -> None:
    write = "python3 -c 'import sqlite3,os; c=sqlite3.connect(\"db\"); {}; c.commit(); os._exit(0)'"
    arena.shell(write.format('c.execute("pragma journal_mode=wal"); c.execute("create table t(a)")'))
    found = arena.speculate(write.format('c.execute("insert into t values(42)")'), engine)
    assert {"/db-wal", "/db-shm"} <= by_path(found).keys()
    apply_all(arena, found)
    database = sqlite3.connect(arena.workspace / "db")
    assert database.execute("select a from t").fetchall() == [(42,)]
    database.close()


@both
def test_three_of_many_are_three(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("for d in $(seq 20); do mkdir d$d; for f in $(seq 100); do echo $f>d$d/f$f; done; done")
    found = prove(arena, "echo x>d3/f7; rm d4/f9; touch d5/new", engine)
    assert list(by_path(found)) == ["/d3/f7", "/d4/f9", "/d5/new"]
    assert found.changes.unchanged == 2021 - 2


@both
def test_links_are_numbered_the_same_on_both_sides_where_they_stayed(arena: Arena, engine: CopyEngine) -> None:
    arena.shell("echo a>f; ln f g; echo b>h; ln h i; echo c>j")
    found = by_path(arena.speculate("echo x>>f; ln j k; rm i", engine))
    sides = [side for path in ("/f", "/g") for side in (found[path].before, found[path].after)]
    assert len({side.link_group for side in sides if side is not None}) == 1
    assert found.keys() == {"/f", "/g", "/i", "/j", "/k"}
    assert found["/j"].attributes == ("links",) and found["/j"].staged is None


@both
def test_paths_longer_than_a_call_takes_are_captured(arena: Arena, engine: CopyEngine) -> None:
    go = "n=$(printf 'd%.0s' $(seq 255)); for i in $(seq 60); do mkdir -p $n; cd $n; done; "
    setup = f"{go} echo a>f; echo g>g; ln g k"
    arena.shell(setup)
    found = prove(
        arena, f"{go} echo b>>f; rm g; echo h>h; mkdir q; echo z>q/z; mv k l; cd ..; mv $n moved", engine, setup
    )
    assert max(len(change.location) for change in found.changes.every()) > 15_000
    assert len(list(arena.preimages.iterdir())) == 2
