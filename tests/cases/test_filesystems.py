"""The same results on every file system, on a workspace that is a mount itself, and with a mount inside of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.disks import bound, missing, mounted
from tests.cases.kit import Case, Program, differences, look, reported, shell
from tests.cases.rows import ROWS

pytestmark = pytest.mark.root
#: What is tried everywhere at once, each in a directory of its own.
EVERYWHERE = (
    *("1", "10", "11", "18-directory-link", "18-file-directory", "20", "24", "25", "26", "27-set-and-removed"),
    *("28", "29-broken", "29-written-through", "30", "32"),
)
KINDS = ["btrfs", "xfs", "ext4", "tmpfs"]
FASTEST = {"btrfs": "snapshot", "xfs": "overlay", "ext4": "overlay", "tmpfs": "overlay"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if (reason := missing(found)) is not None:
        pytest.skip(f"cannot mount {found}: {reason}")
    return found


@pytest.fixture
def volume(kind: str) -> Iterator[Path]:
    with mounted(kind) as found:
        yield found


def together(part: int) -> str:
    """Return the set-ups or the commands of many rows, each in a directory of its own."""
    lines = [f"(cd '{name}'; {ROWS[name][part]})" for name in EVERYWHERE]
    return "; ".join(["mkdir " + " ".join(EVERYWHERE), *lines] if part == 0 else lines)


def make_workspace(kind: str, place: Path) -> Path:
    if kind == "btrfs":
        subprocess.run(["btrfs", "-q", "subvolume", "create", place], check=True)
    else:
        place.mkdir()
    return place


def test_45_the_preferred_engine_of_each_file_system(kind: str, volume: Path) -> None:
    case = Case(Program(volume / "state"), make_workspace(kind, volume / "w"), volume, together(0))
    made = case.carry(together(1), "auto")
    assert made["copy_engine"] == FASTEST[kind]
    case.close()


@pytest.mark.parametrize(
    ("kind", "engine"), [("xfs", "reflink"), ("btrfs", "reflink"), ("xfs", "copy")], indirect=["kind"]
)
def test_45_an_engine_that_was_asked_for(kind: str, volume: Path, engine: str) -> None:
    case = Case(Program(volume / "state"), make_workspace(kind, volume / "w"), volume, together(0))
    case.carry(together(1), engine)
    case.close()


def test_45_a_workspace_that_is_a_mount_itself_elsewhere_than_the_state(kind: str, volume: Path, place: Path) -> None:
    case = Case(Program(place / "state"), volume, place, together(0))
    case.carry(together(1), "auto")
    assert sorted(path.name for path in volume.iterdir() if path.name != "lost+found") == sorted(EVERYWHERE)
    case.close()


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_45_a_mount_inside_is_reported_and_left_alone(place: Path, engine: str) -> None:
    workspace, outside = place / "w", place / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept\n")
    shell("mkdir -p w/d/mnt; echo a>w/f; echo b>w/d/g; echo under>w/d/mnt/under", place)
    program = Program(place / "state")
    with bound(outside, workspace / "d/mnt"):
        sandbox = program.create(workspace)
        made = program.speculate(sandbox, "ls -a d/mnt; echo x>>f; rm d/g; echo n>d/n; echo y>d/mnt/written", engine)
        assert "kept" not in made["stdout"]
        assert [entry["path"] for entry in made["not_captured"]] == ["/d/mnt"]
        assert reported(made) == {"~/f", "-/d/g", "+/d/n"}
        program.decide("approve", made, digest=made["digest"])
        assert program.decide("apply", made)["state"] == "applied"
        assert (
            shell("cat f d/n d/mnt/kept; ls d d/mnt", workspace).stdout
            == b"a\nx\nn\nkept\nd:\nmnt\nn\n\nd/mnt:\nkept\n"
        )
        gone = program.speculate(sandbox, "rm -r d; echo z>d", engine)
        assert (outside / "kept").read_text() == "kept\n"
        program.decide("reject", gone)
        program.remove(sandbox)
    assert shell("ls d/mnt", workspace).stdout == b"under\n"


def test_45_a_bind_mount_of_the_workspace_is_the_same_workspace(place: Path) -> None:
    real, shown = place / "real", place / "shown"
    real.mkdir()
    shown.mkdir()
    with bound(real, shown):
        case = Case(Program(place / "state"), shown, place, together(0))
        expected, _ = case.expect(together(1))
        case.apply(case.speculate(together(1)))
        case.close()
    assert differences(expected, look(real)) == {}
