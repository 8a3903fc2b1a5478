"""What a user without privileges gets: the same changesets, and a word on whatever is not theirs to carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.kit import Case, Program, Refused, look, reported, shell

pytestmark = pytest.mark.root
NOBODY = 65534


@pytest.fixture
def place(disk: Path) -> Iterator[Path]:
    """A directory of nobody's on the disk, which nobody can reach."""
    for parent in (disk, disk.parent):
        parent.chmod(0o755)
    top = disk / f"nobody-{os.urandom(4).hex()}"
    top.mkdir()
    os.chown(top, NOBODY, NOBODY)
    yield top
    shutil.rmtree(top)


@pytest.fixture
def program(place: Path) -> Program:
    """The program as nobody."""
    setpriv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
    found = Program(place / "state", before=setpriv)
    probe = [*setpriv, sys.executable, "-c", "import flux.app.fluxctl"]
    if subprocess.run(probe, capture_output=True, check=False, cwd="/").returncode != 0:
        pytest.skip("nobody cannot run this interpreter: it lies where only its owner may go")
    return found


def workspace(place: Path, setup: str) -> Path:
    made = place / "w"
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    shell(f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -c '{setup}'", made)
    return made


def test_30_what_was_closed_by_its_owner_is_carried(program: Program, place: Path) -> None:
    made = workspace(place, "echo a>f; mkdir d; echo b>d/g; echo o>o")
    case = Case(program, made, place, "true")
    changeset = case.speculate("echo c>n; mkdir e; echo x>e/y; chmod 000 n e o; mv d q", "copy")
    assert reported(changeset) == {"+/n", "+/e", "+/e/y", "~/o", "-/d", "-/d/g", "+/q", "+/q/g"}
    case.apply(changeset)
    found = look(made)
    assert [found[path].mode for path in ("/n", "/e", "/o")] == ["0o0"] * 3
    assert {facts.owner for facts in found.values()} == {(NOBODY, NOBODY)}
    case.close()


def test_30_what_is_closed_already_is_reported(program: Program, place: Path) -> None:
    made = workspace(place, "echo a>f; echo b>g; chmod 000 f")
    case = Case(program, made, place, "true")
    with pytest.raises(Refused, match="/f"):
        case.speculate("echo c>>g", "copy")
    case.untouched()
    (made / "f").unlink()
    case.before = look(made)
    assert reported(case.speculate("echo c>>g", "copy")) == {"~/g"}
    case.close()


def test_26_an_owner_that_cannot_be_is_refused_to_the_command(program: Program, place: Path) -> None:
    case = Case(program, workspace(place, "echo a>f"), place, "true")
    changeset = case.speculate("chown 1:1 f || echo refused; mknod x c 1 3 || echo refused")
    assert changeset["stdout"] == "refused\nrefused\n"
    assert reported(changeset) == set()
    case.close()
