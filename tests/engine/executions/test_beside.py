"""Speculations in a sandbox that was restored, over a template and over the built-in one."""

from __future__ import annotations

import os

import pytest

from flux.core.requests import Speculate
from flux.engine.speculation import isolated
from flux.engine.speculation.isolated import Targets
from flux.trees.run import PARTED
from tests.engine.executions.kit import Machine, differences, look

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]


@pytest.mark.parametrize("built_in", [False, True], ids=["template", "base"])
def test_a_run_in_a_restored_sandbox_sees_all_layers_and_changes_none(machine: Machine, built_in: bool) -> None:
    sandbox = machine.cold_start(built_in=built_in)
    machine.run(sandbox, "echo 1 > /top; mkdir /data; echo x > /data/x; ln /data/x /data/linked")
    sandbox, _ = machine.cycle(sandbox)
    machine.run(sandbox, "echo 2 > /data/y")
    before = look(machine.tree(sandbox))
    request = Speculate(command="cat /data/x /data/y; rm /data/x; echo 3 > /data/z; echo q > /top; echo t > /tmp/t")
    with machine.context.stores.changesets.draft("cs1") as draft:
        finished = isolated.run(machine.context, sandbox, request, Targets(draft.blobs, draft.preimages))
    assert finished.engine == "overlay"
    assert (PARTED in finished.engine_reason) == built_in
    assert finished.outcome.stdout.text == "x\n2\n"
    changed = {change.location for change in finished.capture.changes.every()}
    assert changed == {"/data/x", "/data/z", "/top", "/data/linked"} or changed == {"/data/x", "/data/z", "/top"}
    assert differences(before, look(machine.tree(sandbox))) == {}
