"""Random changes over many generations: what a pause saves, the next connect shows, entry by entry (I12)."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from flux.core.sandbox import Sandbox
from flux.trees.layers import merge
from tests.engine.executions import restless
from tests.engine.executions.kit import Machine, differences, look

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]

PROGRAM = base64.b64encode(Path(restless.__file__).read_bytes()).decode("ascii")


def disturb(machine: Machine, sandbox: Sandbox, seed: int, count: int) -> None:
    machine.run(sandbox, f"python3 -c \"import base64,sys; exec(base64.b64decode('{PROGRAM}'))\" {seed} {count}")


def fill(data: Path) -> None:
    """Make what a template may hold: nested directories, names that share an inode, every kind of entry."""
    for at in ("d/e/f", "d/g", "h"):
        (data / at).mkdir(parents=True)
        for number in range(3):
            (data / at / f"file{number}").write_bytes(os.urandom(100 * number))
    for name in ("one", "d/two", "d/e/three"):
        os.link(data / "h" / "file2", data / name)
    os.link(data / "d/g/file1", data / "h/other")
    os.mkfifo(data / "h/fifo")
    os.symlink("fifo", data / "h/link")
    os.link(data / "h/link", data / "link", follow_symlinks=False)
    (data / "h" / "sparse").touch()
    os.truncate(data / "h" / "sparse", 1 << 20)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 1)) for seed in range(8)])
@pytest.mark.parametrize("built_in", [False, True], ids=["template", "base"])
def test_every_generation_shows_what_the_one_before_left(
    machine: Machine, seed: int, built_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # everything is merged, all the time
        monkeypatch.setattr(merge, "LAYERS_MAX", 1)
    if not built_in:
        fill(machine.template / "data")
    sandbox = machine.cold_start(built_in=built_in)
    machine.run(sandbox, "mkdir -p /data")
    heights = []
    for step in range(10):
        disturb(machine, sandbox, 1000 * seed + step, 60)
        before = look(machine.tree(sandbox))
        sandbox, made = machine.cycle(sandbox)
        assert differences(before, look(machine.tree(sandbox))) == {}, (seed, step)
        heights.append(len(made.layers))
        for layer in made.layers:
            assert machine.context.layers.read(layer).size == machine.context.layers.size(layer)
    assert max(heights) >= 2
