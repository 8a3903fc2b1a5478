"""Random trees, random commands: every engine's capture equals what the bare command made of a plain copy."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flux.core.requests import CopyEngine
from tests.trees.arena import Arena, prove
from tests.trees.filesystems import mounted
from tests.trees.unprivileged import as_nobody, place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts overlays and file systems as root")

EXAMPLES = int(os.environ.get("TREES_EXAMPLES", "25"))
NAMES = ("a", "b", "c", "d")
NAME = st.sampled_from(NAMES)
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
TEXT = st.sampled_from(("one", "two", "six", "longer text", ""))

ONE_PATH = {
    "write": "[ -p {a} ] || printf %s {text} >{a}",
    "append": "[ -p {a} ] || printf %s {text} >>{a}",
    "keep-time": '[ -f {a} ] && t=$(stat -c %y {a}) && printf %s {text} >{a} && touch -d "$t" {a}',
    "replace": "rm -rf {a}; printf %s {text} >{a}",
    "remove": "rm -rf {a}",
    "unlink": "rm -f {a}",
    "make": "mkdir -p {a}",
    "remake": "rm -rf {a}; mkdir {a}",
    "fifo": "mkfifo {a}",
    "mode": "chmod 6{mode} {a}",
    "owner": "chown -h 7:8 {a}",
    "xattr": "setfattr -n user.x -v {text} {a}",
    "touch": "touch {a}",
}
TWO_PATHS = {
    "move": "mv -f -T {a} {b}",
    "move-into": "mv -f {a} {b}",
    "copy": "cp -a -T --remove-destination {a} {b}",
    "link": "ln -f {a} {b}",
    "symlink": "ln -sfn {a} {b}",
    "swap": "mv -T {a} swap && mv -T {b} {a}; mv -T swap {b}",
    "read": "[ -p {a} ] || [ -p {b} ] || cat {a} >{b}",
}


@st.composite
def commands(draw: st.DrawFn) -> str:
    """One command on one or two paths."""
    one, other = draw(PATH), draw(PATH)
    template = draw(st.sampled_from([*ONE_PATH.values(), *TWO_PATHS.values()]))
    mode = draw(st.sampled_from(("00", "44", "55", "66")))
    return template.format(a=one, b=other, text=shlex.quote(draw(TEXT)), mode=mode)


SCRIPT = st.lists(commands(), max_size=12).map(lambda lines: " 2>/dev/null\n".join([*lines, "true"]))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with mounted(tmp_path_factory.mktemp("mounts"), ("btrfs", "xfs", "tmpfs")) as found:
        yield {**found, "ext4": tmp_path_factory.mktemp("plain")}


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("ext4", "overlay"), ("tmpfs", "overlay"), ("ext4", "copy"), ("xfs", "reflink"), ("btrfs", "snapshot")],
)
def test_any_command_is_captured_exactly(places: dict[str, Path], kind: str, engine: CopyEngine) -> None:
    top = places[kind]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(setup=SCRIPT, script=SCRIPT)
    def check(setup: str, script: str) -> None:
        clear(top)
        if kind == "btrfs":
            subprocess.run(["btrfs", "-q", "subvolume", "create", str(top / "workspace")], check=True)
        arena = Arena(top)
        arena.shell(setup)
        arena.shell("echo content to share >shared")
        prove(arena, script, engine)

    try:
        check()
    finally:
        clear(top)


def test_any_command_is_captured_exactly_without_privileges() -> None:
    with place() as top:

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
        @given(setup=SCRIPT, script=SCRIPT)
        def check(setup: str, script: str) -> None:
            clear(top)
            arena = Arena(top)
            arena.shell(setup)
            prove(arena, script, "auto")

        as_nobody(check)


def clear(top: Path) -> None:
    """Remove a workspace and all around it."""
    workspace = top / "workspace"
    if workspace.exists() and workspace.stat().st_ino == 256:  # a subvolume, or by chance another file system's inode
        subprocess.run(["btrfs", "-q", "subvolume", "delete", str(workspace)], check=False, capture_output=True)
    for path in top.iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
