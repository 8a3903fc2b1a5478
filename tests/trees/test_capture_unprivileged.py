"""The same without privileges: overlays of a user namespace, and what is refused or reported instead of faked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.trees.privilege import is_privileged
from tests.trees.arena import Arena, facts, prove
from tests.trees.cases import CASES
from tests.trees.unprivileged import as_nobody, place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")

# What the cases do that takes root even in the bare command, or that needs several names of one file.
ROOT_ONLY = {"owners", "device-there-before", "odd-xattrs", "acls", "capability-dropped", "old-and-far-times"}
LINKED_BEFORE = {name for name, (setup, _) in CASES.items() if "ln " in setup.replace("ln -s", "")}
# The kernel does not rename a directory of the lower layer here; mv then copies, with the same outcome.
OVERLAY = sorted(CASES.keys() - ROOT_ONLY - LINKED_BEFORE - {"linked-fifo"})


@pytest.fixture
def top() -> Iterator[Path]:
    with place() as found:
        yield found


@pytest.mark.parametrize("name", OVERLAY)
def test_an_overlay_captures_what_the_bare_command_does(top: Path, name: str) -> None:
    setup, command = CASES[name]

    def check() -> None:
        assert not is_privileged()
        arena = Arena(top)
        arena.shell(setup)
        if name == "closed":
            # The plain copy of it cannot be made: what may not be read may not be copied.
            before = facts(arena.workspace)
            found = arena.speculate(command, "overlay")
            assert facts(arena.workspace) == before
            assert [change.location for change in found.changes.every()] == ["/e", "/e/y", "/f", "/n"]
            assert not found.unstaged
            return
        prove(arena, command, "overlay")

    as_nobody(check)


@pytest.mark.parametrize(
    "name", ["link-written-through", "link-broken", "link-moved", "modes", "names", "sparse", "fifo"]
)
def test_a_copy_captures_what_the_bare_command_does(top: Path, name: str) -> None:
    setup, command = CASES[name]

    def check() -> None:
        arena = Arena(top)
        arena.shell(setup)
        if name.startswith("link"):
            run_tree = arena.prepare()
            assert run_tree.engine == "copy" and "has several names" in run_tree.reason
            arena.close()
        prove(arena, command, "copy")

    as_nobody(check)


def test_what_belongs_to_another_is_refused_by_name(top: Path) -> None:
    (top / "workspace").mkdir()
    (top / "workspace" / "file").touch()
    os.chown(top / "workspace", 65534, 65534)

    def check() -> None:
        arena = Arena(top)
        with pytest.raises(FluxError) as caught:
            arena.prepare()
        assert caught.value.code is Code.NOT_APPLICABLE
        assert "/file belongs to another user or group" in caught.value.message
        assert not list((arena.state / "scratch").iterdir())

    as_nobody(check)


def test_what_cannot_be_read_keeps_a_copy_from_being_made(top: Path) -> None:
    def check() -> None:
        arena = Arena(top)
        arena.shell("echo a>f; chmod 000 f; mkdir d; echo b>d/g; chmod 000 d")
        for engine in ("auto", "overlay"):
            arena.prepare(engine)
            found = arena.run("chmod 700 d 2>/dev/null; echo x>n; rm -f f")
            arena.close()
            assert {"/f", "/n"} <= {change.location for change in found.changes.every()}
            assert "/d" not in {item.path for item in found.unstaged}
        with pytest.raises(FluxError) as caught:
            arena.prepare("copy")
        assert "/d cannot be read" in caught.value.message
        arena.shell("chmod 700 d")

    as_nobody(check)


def test_a_directory_that_the_run_closed_is_no_deletion(top: Path) -> None:
    def check() -> None:
        arena = Arena(top)
        arena.shell("mkdir -p d/e; echo a>d/e/f; echo b>d/g")
        for engine in ("overlay", "copy"):
            found = arena.speculate("echo c>>d/e/f; chmod 000 d/e d", engine)  # type: ignore[arg-type]
            changes = {change.location: change.attributes for change in found.changes.every()}
            assert changes == {"/d": ("mode",), "/d/e": ("mode",), "/d/e/f": ("content",)}
            assert not found.unstaged

    as_nobody(check)
