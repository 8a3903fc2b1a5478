"""Managed workspaces: a run stacks on the sandbox's own overlay, or copies where that would not be faithful."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Overlay
from flux.trees.workspace import Workspace
from tests.trees.arena import Arena, View, prove, run
from tests.trees.cases import CASES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts overlays as root")


class Managed(Arena):
    """A sandbox's tree: a template, a layer of its own over it, mounted; ``workspace`` is the merged tree."""

    def __init__(self, top: Path, template: str, own: str, *, options: str = ",nfs_export=on") -> None:
        super().__init__(top)
        self.template, self.layer = top / "template", top / "layer"
        for path in (self.template, self.layer / "upper", self.layer / "work"):
            path.mkdir(parents=True)
        run(template, self.template)
        overlay = Overlay(lower=(str(self.template),), upper=f"{self.layer}/upper", work=f"{self.layer}/work")
        self.below = View(overlay, top, options=options)
        self.below.run(own)
        self.workspace = Path(self.below.path)
        self.own = Workspace("managed", str(self.layer), (str(self.template),))


Maker = Callable[..., Managed]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    made: list[Managed] = []

    def one(template: str, own: str, **options: str) -> Managed:
        made.append(Managed(tmp_path, template, own, **options))
        return made[-1]

    yield one
    for sandbox in made:
        assert sandbox.below is not None
        sandbox.below.close()


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"root-attributes"}))
def test_a_run_on_the_template_is_captured_exactly(make: Maker, name: str) -> None:
    setup, command = CASES[name]
    prove(make(setup, "true"), command, "overlay")


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_run_on_what_the_sandbox_wrote_is_captured_exactly(make: Maker, name: str) -> None:
    setup, command = CASES[name]
    prove(make("mkdir -p template/of/it; echo t>template/file; ln template/file again", setup), command, "overlay")


MIXED = {
    "written-in-both": ("mkdir d; echo a>d/f; echo b>d/g", "echo c>d/h; rm d/g", "mv d e; echo x>>e/f; rm e/h"),
    "renamed-in-both": ("mkdir -p d/e; echo a>d/e/f", "mv d x", "mv x/e y; echo b>y/g"),
    "remade-in-both": ("mkdir d; echo a>d/f", "rm -r d; mkdir d; echo b>d/g", "rm -r d; mkdir d; echo c>d/f"),
    "linked-in-both": ("echo a>f; ln f g; ln f h", "echo b>>g", "echo c>>h; ln f i"),
    "linked-and-removed": ("echo a>f; ln f g; ln f h", "echo b>>g; rm g", "echo c>>h; rm h"),
    "restored": ("echo a>f", "rm f", "echo a>f"),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_run_on_both_is_captured_exactly(make: Maker, name: str) -> None:
    template, own, command = MIXED[name]
    sandbox = make(template, own)
    prove(sandbox, command, "overlay")
    prove(sandbox, command, "copy")


def test_the_overlay_stacks_on_the_open_tree(make: Maker) -> None:
    sandbox = make("echo a>f", "true")
    tree = sandbox.prepare().tree
    assert isinstance(tree, Overlay)
    assert tree.lower == () and tree.lower_descriptor == sandbox.root
    sandbox.close()


def test_linked_files_that_a_stacked_overlay_would_part_are_copied(make: Maker) -> None:
    sandbox = make("echo a>f; ln f g", "true", options="")
    run_tree = sandbox.prepare()
    assert run_tree.engine == "copy" and "has several names, which a stacked overlay cannot keep" in run_tree.reason
    sandbox.close()
    prove(sandbox, "echo b>>f", "copy")


def test_only_the_sandboxs_own_layer_is_measured(make: Maker) -> None:
    sandbox = make("head -c 3000 /dev/zero >big", "head -c 500 /dev/zero >small")
    sandbox.max_bytes = 500
    sandbox.prepare()
    sandbox.close()
    sandbox.max_bytes = 499
    with pytest.raises(FluxError) as caught:
        sandbox.prepare()
    assert caught.value.code is Code.TOO_LARGE and caught.value.details["measured_bytes"] == 500
