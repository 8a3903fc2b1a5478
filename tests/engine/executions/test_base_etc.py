"""Directories of ``/etc`` that the built-in template shows and does not copy."""

from __future__ import annotations

import os

import pytest

from tests.engine.executions.kit import Machine, look

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]

DIRECTORIES = [
    f"/etc/{name}"
    for name in ("alternatives", "ssl/certs", "fonts", "ld.so.conf.d")
    if os.path.isdir(f"/etc/{name}") and os.path.realpath(f"/etc/{name}") == f"/etc/{name}"
]
LIST = f"find {' '.join(DIRECTORIES)} | sort"


@pytest.mark.skipif(not DIRECTORIES, reason="the host has none of these directories")
def test_they_are_the_hosts_and_the_sandboxs_to_change(machine: Machine) -> None:
    hosts = os.popen(LIST).read()
    place = DIRECTORIES[0]
    victim = sorted(os.listdir(place))[0]
    sandbox = machine.cold_start(built_in=True)
    assert machine.run(sandbox, LIST) == hosts
    machine.run(sandbox, f"rm -r {place}/{victim}; echo own > {place}/own; chmod 700 {place}")
    expected = "\n".join(
        sorted([*(line for line in hosts.split() if not line.startswith(f"{place}/{victim}")), f"{place}/own"])
    )
    assert sorted(machine.run(sandbox, LIST).split()) == expected.split("\n")
    assert os.popen(LIST).read() == hosts
    before = look(machine.tree(sandbox))
    for number in range(3):  # so often that layers are merged
        sandbox, _ = machine.cycle(sandbox)
        assert look(machine.tree(sandbox)) == before
        machine.run(sandbox, f"echo {number} > {place}/{number}; cat {place}/own")
        before = look(machine.tree(sandbox))
    assert os.popen(LIST).read() == hosts


def test_nothing_else_of_etc_shows_in_a_restored_sandbox(machine: Machine) -> None:
    sandbox = machine.cold_start(built_in=True)
    first = machine.run(sandbox, "ls -A /etc")
    assert "shadow" not in first.split()
    sandbox, _ = machine.cycle(sandbox)
    assert machine.run(sandbox, "ls -A /etc") == first
    machine.run(sandbox, "rm -r /etc")
    sandbox, _ = machine.cycle(sandbox)
    assert machine.run(sandbox, "ls -A /etc 2>/dev/null; true") == ""
