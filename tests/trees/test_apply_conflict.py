"""An apply onto a tree that is not what was reviewed: refused, the newer content survives, nothing is written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.testing.crash import die, in_child
from tests.trees.kit import Staging, World, differences

SETUP = (
    "umask 022; mkdir -p d/sub e gone/in same; echo one >d/f; echo two >d/g; echo three >gone/in/x; echo four >other; "
    "echo five >e/mode; ln -s a l; echo six >type; mkfifo p; echo seven >same/s"
)
CHANGE = (
    "umask 022; echo changed >d/f; rm -r gone; echo new >d/new; chmod 600 e/mode; ln -sfn b l; rm type; mkdir type; "
    "echo in >type/in; mkdir fresh; echo a >fresh/a; chmod 700 e"
)


def shell(text: str, top: Path) -> None:
    subprocess.run(["bash", "-ec", text], cwd=top, check=True)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    world = World(tmp_path)
    shell(SETUP, world.workspace)
    return world.speculate(lambda run: shell(CHANGE, run))


def refused(staging: Staging) -> dict[str, str]:
    """Apply, expect a conflict that changes nothing, and return the reason of each path."""
    before = staging.world.look(directory_times=True)
    with pytest.raises(FluxError) as caught:
        staging.apply()
    error = caught.value
    assert (error.code, error.details["changeset"], error.details["reason"]) == (Code.CONFLICT, "approved", "drift")
    assert differences(staging.world.look(directory_times=True), before) == {}
    assert set(os.listdir(staging.path)) <= {"blobs", "journal"}
    conflicts = error.details["conflicts"]
    assert all(set(item) >= {"path", "expected", "found", "reason"} for item in conflicts)
    assert error.details["count"] >= len(conflicts) <= 10
    return {item["path"]: item["reason"] for item in conflicts}


# name → edit, what scope "all" says, what scope "touched" says
EDITS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "touched content": ("echo other>d/f", {"/d/f": "content"}, {"/d/f": "content"}),
    "touched content of the same size and time": (
        "touch -r d/f t; printf 9 | dd of=d/f conv=notrunc status=none; touch -r t d/f; rm t",
        {"/d/f": "content"},
        {"/d/f": "content"},
    ),
    "untouched content": ("echo other>>other", {"/other": "content"}, {}),
    "untouched content of the same size": ("echo FOUR >other", {"/other": "content"}, {}),
    "untouched gone": ("rm other", {"/other": "deleted"}, {}),
    "untouched appeared": ("echo x>appeared", {"/appeared": "added"}, {}),
    "untouched mode": ("chmod 600 other", {"/other": "attributes"}, {}),
    "untouched type": ("rm other; mkdir other", {"/other": "type"}, {}),
    "target taken by a dangling link": ("ln -s nowhere d/new", {"/d/new": "added"}, {"/d/new": "added"}),
    "target taken by a directory": ("mkdir d/new", {"/d/new": "added"}, {"/d/new": "added"}),
    "new tree taken": ("mkdir fresh; echo b>fresh/b", {"/fresh": "added", "/fresh/b": "added"}, {"/fresh": "added"}),
    "grown in a directory that goes": ("echo y>gone/in/y", {"/gone/in/y": "added"}, {"/gone/in/y": "added"}),
    "changed in a directory that goes": ("echo y>gone/in/x", {"/gone/in/x": "content"}, {"/gone/in/x": "content"}),
    "ancestor changed": ("chmod 711 d", {"/d": "attributes"}, {"/d": "attributes"}),
    "ancestor replaced by a link": (
        "mv d elsewhere; ln -s elsewhere d",
        {"/d": "type", "/d/f": "deleted", "/d/g": "deleted", "/d/sub": "deleted"},
        {"/d": "type", "/d/f": "deleted"},
    ),
    "retargeted": ("ln -sfn c l", {"/l": "content"}, {"/l": "content"}),
    "touched mode": ("chmod 640 e/mode", {"/e/mode": "attributes"}, {"/e/mode": "attributes"}),
    "touched directory's mode": ("chmod 750 e", {"/e": "attributes"}, {"/e": "attributes"}),
    "touched xattr": ("setfattr -n user.k -v 1 d/f", {"/d/f": "attributes"}, {"/d/f": "attributes"}),
    "touched gone": ("rm d/f", {"/d/f": "deleted"}, {"/d/f": "deleted"}),
}


@pytest.mark.parametrize("scope", ["all", "touched"])
@pytest.mark.parametrize("name", EDITS)
def test_drift(staging: Staging, name: str, scope: str) -> None:
    edit, everywhere, touched = EDITS[name]
    shell(edit, staging.world.workspace)
    staging.scope = scope
    expected = everywhere if scope == "all" else touched
    if not expected:
        staging.apply()
        assert (staging.world.workspace / "d/new").read_text() == "new\n"
        return
    found = refused(staging)
    assert expected.items() <= found.items(), found
    assert refused(staging) == found, "a second apply says the same"


def test_equal_content_is_no_conflict(staging: Staging) -> None:
    top = staging.world.workspace
    shell("cp d/f t; mv t d/f; rm other; echo four >other; touch -d @77 same/s; touch d gone/in", top)
    staging.apply()
    assert (top / "d/f").read_text() == "changed\n"


def test_unknown_content_is_a_conflict_that_says_so(staging: Staging) -> None:
    staging.base["/other"] = staging.base["/other"].rpartition(" ")[0] + " -"
    shell("touch -d @77 other", staging.world.workspace)
    assert refused(staging) == {"/other": "content_unknown"}


def test_the_first_ten_are_named_and_all_are_counted(staging: Staging) -> None:
    for number in range(25):
        (staging.world.workspace / f"n{number:02d}").write_text("x")
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert caught.value.details["count"] == 25
    assert [item["path"] for item in caught.value.details["conflicts"]] == [f"/n{number:02d}" for number in range(10)]
    assert "25 paths changed" in caught.value.message


def test_only_the_paths_of_the_changeset_are_looked_at(staging: Staging) -> None:
    staging.changes = [change for change in staging.changes if change.location.startswith("/d/")]
    staging.paths = ("/d",)
    staging.base = {path: token for path, token in staging.base.items() if path == "/d" or path.startswith("/d/")}
    shell("echo x>other; rm -r gone; echo y>e/z", staging.world.workspace)
    staging.apply()
    assert (staging.world.workspace / "d/f").read_text() == "changed\n"


# What somebody does between the drift check and the rename of its path.
RACES = {
    "target appears": "echo theirs>d/new",
    "new tree's name appears": "mkdir fresh; echo theirs>fresh/b",
    "content changes": "echo theirs>d/f",
    "content of the same size and time": "touch -r d/f ../t; printf 9 | dd of=d/f conv=notrunc status=none; "
    "touch -r ../t d/f",
    "file goes": "rm d/f",
    "file becomes a directory": "rm d/f; mkdir d/f; echo theirs>d/f/x",
    "something appears in a directory that goes": "echo theirs>gone/in/y",
    "something changes in a directory that goes": "printf 9 | dd of=gone/in/x conv=notrunc status=none",
    "a file that becomes a directory changes": "echo theirs>>type",
    "a link is retargeted": "ln -sfn theirs l",
    "attributes change": "chmod 444 e/mode",
    "a directory's attributes change": "chmod 711 e",
    "a parent becomes a link": "mv d d2; ln -s d2 d",
    "a parent is replaced": "mv d d2; mkdir d; cp -p d2/f d2/g d; cp -pr d2/sub d",
    "a parent goes": "mv d d2",
}


@pytest.mark.parametrize("place", ["beside the journal", "in the workspace"])
@pytest.mark.parametrize("name", RACES)
def test_changed_between_the_check_and_the_rename(staging: Staging, name: str, place: str, memory: Path) -> None:
    top = staging.world.workspace
    if place == "in the workspace":
        staging = staging.moved(memory / "state")
    at_check: dict[str, object] = {}

    def race(point: Point) -> None:
        shell(RACES[name], top)
        at_check.update(staging.world.look())

    with pytest.raises(FluxError) as caught, armed(_first(Point.APPLY_INSTALL, race)):
        staging.apply()
    assert caught.value.code is Code.CONFLICT, caught.value
    assert caught.value.details["changeset"] == "approved"
    assert at_check
    visible = {path: facts for path, facts in staging.world.look().items() if not path.startswith("/.flux")}
    expected = {path: facts for path, facts in at_check.items() if not path.startswith("/.flux")}
    assert differences(visible, _without_own_links(expected, visible)) == {}  # type: ignore[arg-type]
    assert not [name for name in os.listdir(top) if name.startswith(".flux")]


def _without_own_links(expected: dict[str, object], now: dict[str, object]) -> dict[str, object]:
    """While the apply was under way the files that it prepared to move had one name more."""
    links, names = 4, -1
    return {
        path: (*facts[:links], now[path][links], *facts[links + 1 : names], now[path][names]) if path in now else facts  # type: ignore[index]
        for path, facts in expected.items()
    }


def _first(wanted: Point, action: Callable[[Point], None]) -> Callable[[Point], None]:
    done: list[Point] = []

    def effect(point: Point) -> None:
        if point is wanted and not done:
            done.append(point)
            action(point)

    return effect


def test_a_directory_that_leaves_with_what_was_installed(staging: Staging) -> None:
    """What was installed went with it: no success, no guess, and once the directory is back so is what was in it."""
    top = staging.world.workspace
    before = staging.world.look()
    race = _first(Point.APPLY_ATTRIBUTES, lambda point: shell("mv d away; mkdir d", top))
    with pytest.raises(FluxError) as caught, armed(race):
        staging.apply()
    assert (caught.value.code, caught.value.details["changeset"]) == (Code.UNKNOWN_OUTCOME, "failed")
    assert {item["path"] for item in caught.value.details["problems"]} == {"/d/f", "/d/new"}
    assert "/d/new" in caught.value.message
    assert os.listdir(top / "d") == []
    shell("rmdir d; mv away d", top)
    assert staging.recover().outcome == "rolled_back"
    assert differences(staging.world.look(), before) == {}


def test_a_file_that_takes_a_name_in_the_moment_it_is_taken_back(staging: Staging) -> None:
    top = staging.world.workspace

    def race(point: Point) -> None:
        if point is Point.APPLY_COMMIT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if point is Point.ROLLBACK and not (top / "fresh").exists() and not (top / "d/moved").exists():
            shell("mv d/new d/moved; echo theirs >d/new", top)

    with pytest.raises(FluxError), armed(race):
        staging.apply()
    assert (top / "d/moved").exists()
    assert (top / "d/new").read_text() == "theirs\n"


def test_a_reference_that_changes_before_it_is_copied(tmp_path: Path) -> None:
    world = World(tmp_path)
    shell("head -c 1000 /dev/zero>f; mkdir d", world.workspace)
    staging = world.speculate(lambda run: shell("cp f g; echo x>>f", run))
    race = _first(
        Point.APPLY_PREPARE, lambda point: shell("printf 9 | dd of=f conv=notrunc status=none", world.workspace)
    )
    with pytest.raises(FluxError) as caught, armed(race):
        staging.apply()
    assert caught.value.code is Code.CONFLICT
    assert sorted(os.listdir(world.workspace)) == ["d", "f"]
    assert (world.workspace / "f").read_bytes()[:1] == b"9"


def test_a_file_that_moves_and_is_another_for_a_moment(tmp_path: Path) -> None:
    """What was reviewed is there again when it is displaced, but it is not what was given the new name."""
    world = World(tmp_path)
    shell("echo one >f; mkdir d", world.workspace)
    staging = world.speculate(lambda run: shell("mv f d/g", run))

    def race(point: Point) -> None:
        if point is Point.APPLY_PREPARE and not (tmp_path / "away").exists():
            shell("mv f ../away; echo two >f; touch -r ../away f", world.workspace)
        if point is Point.APPLY_SYNC and (tmp_path / "away").exists():
            shell("mv ../away f", world.workspace)

    with pytest.raises(FluxError) as caught, armed(race):
        staging.apply()
    assert caught.value.code is Code.CONFLICT
    assert not (world.workspace / "d/g").exists()


@pytest.mark.parametrize("edit", ["echo bad>{}", "rm {}", "truncate -s 0 {}", "rm {0}; ln -s /etc/passwd {0}"])
def test_a_blob_that_is_not_what_was_approved(staging: Staging, edit: str) -> None:
    before = staging.world.look(directory_times=True)
    blob = next(change.staged.blob for change in staging.changes if change.staged and change.staged.blob)
    shell(edit.format(f"blobs/{blob}"), staging.path)
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert caught.value.code is Code.CONFLICT
    assert caught.value.details["reason"] == "digest_mismatch"
    assert caught.value.details["changeset"] == "failed"
    assert differences(staging.world.look(directory_times=True), before) == {}
    assert os.listdir(staging.path) == ["blobs"]


def test_two_changesets_of_one_base(tmp_path: Path) -> None:
    world = World(tmp_path)
    shell("echo 1>f", world.workspace)
    first = world.speculate(lambda run: shell("echo a>f", run), "cs1")
    second = world.speculate(lambda run: shell("echo b>f", run), "cs2")
    first.apply()
    assert refused(second) == {"/f": "content"}
    assert (world.workspace / "f").read_text() == "a\n"


AFTER_CRASH = {
    "new file edited": ("echo mine>d/new", {"/d/new": "mine\n"}, ["/d/new"]),
    "new tree grown": ("echo mine>fresh/mine", {"/fresh/mine": "mine\n"}, ["/fresh"]),
    "replaced file edited": ("echo mine>d/f", {"/d/f": "mine\n"}, ["/d/f"]),
    "replaced file replaced": ("rm d/f; echo mine>d/f", {"/d/f": "mine\n"}, ["/d/f"]),
    "replaced file removed": ("rm d/f", {"/d/f": "one\n"}, []),
    "name of a removed tree used": ("mkdir gone; echo mine>gone/mine", {"/gone/mine": "mine\n"}, ["/gone"]),
    "elsewhere": ("echo mine>mine", {"/mine": "mine\n", "/d/f": "one\n"}, []),
}


@pytest.mark.parametrize("place", ["beside the journal", "in the workspace"])
@pytest.mark.parametrize("name", AFTER_CRASH)
def test_what_was_changed_after_a_crash_is_never_destroyed(
    staging: Staging, name: str, place: str, memory: Path
) -> None:
    edit, kept, problems = AFTER_CRASH[name]
    top = staging.world.workspace
    if place == "in the workspace":
        staging = staging.moved(memory / "state")
    crash = _first(Point.APPLY_ATTRIBUTES, die)
    assert in_child(staging.apply, crash) == -signal.SIGKILL
    shell(edit, top)
    recovery = staging.recover()
    assert [problem.path for problem in recovery.problems] == problems
    assert recovery.outcome == ("partial" if problems else "rolled_back")
    for path, text in kept.items():
        assert (top / path[1:]).read_text() == text
    untouched = {"/d/f": "one\n", "/gone/in/x": "three\n", "/type": "six\n"}
    for path, text in untouched.items():
        lost = [problem for problem in recovery.problems if path.startswith(problem.path)]
        if not lost and path not in kept:
            assert (top / path[1:]).read_text() == text
    for problem in recovery.problems:
        if "is kept in" in problem.reason:
            _check_kept(staging, problem.path, problem.reason.rpartition("kept in ")[2])
    assert staging.recover().problems == recovery.problems, "asked again it says the same"


def _check_kept(staging: Staging, path: str, where: str) -> None:
    place = staging.world.workspace / where[1:]
    if where.startswith("area/"):
        place = staging.path / where.split(" ")[0]
    assert place.exists(), where
    original = {"/d/f": "one\n"}.get(path)
    if original is not None:
        assert place.read_text() == original


def test_an_apply_after_a_crash_takes_back_and_refuses(staging: Staging) -> None:
    before = staging.world.look(directory_times=True)
    assert in_child(staging.apply, _first(Point.APPLY_ATTRIBUTES, die)) == -signal.SIGKILL
    assert differences(staging.world.look(directory_times=True), before) != {}
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert (caught.value.code, caught.value.details["changeset"]) == (Code.ILLEGAL_STATE, "failed")
    assert differences(staging.world.look(directory_times=True), before) == {}


def test_a_workspace_that_was_replaced_is_not_touched(staging: Staging) -> None:
    assert in_child(staging.apply, _first(Point.APPLY_ATTRIBUTES, die)) == -signal.SIGKILL
    top = staging.world.workspace
    top.rename(top.with_name("moved"))
    top.mkdir()
    recovery = staging.recover()
    assert recovery.outcome == "partial"
    assert "replaced" in recovery.problems[0].reason
    assert os.listdir(top) == []
    top.rmdir()
    top.with_name("moved").rename(top)
    assert staging.recover().outcome == "rolled_back"


def test_a_foreign_entry_with_the_area_s_name_survives(staging: Staging, memory: Path) -> None:
    staging = staging.moved(memory / "state")
    own = staging.world.workspace / f".flux-{staging.name}"
    own.mkdir()
    (own / "mine").write_text("mine")
    staging.scope = "touched"
    with pytest.raises(FluxError) as caught:
        staging.apply()
    assert (caught.value.code, caught.value.details["changeset"]) == (Code.UNAVAILABLE, "approved")
    assert (own / "mine").read_text() == "mine"
