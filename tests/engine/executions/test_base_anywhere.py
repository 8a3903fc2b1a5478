"""Writes anywhere in a sandbox of the built-in template, by both users, outlast its executions."""

from __future__ import annotations

import os

import pytest

from tests.engine.executions.kit import Machine

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")]

PLACES = ("/usr/local/bin", "/usr/lib", "/etc", "/opt", "/srv", "/var/lib", "/root", "/home/user", "/tmp")
WRITE = "; ".join(f"echo {place} > {place}/mark" for place in PLACES)
READ = "; ".join(f"cat {place}/mark" for place in PLACES)
EXPECTED = "".join(f"{place}\n" for place in PLACES)


def test_they_are_there_after_each_pause(machine: Machine) -> None:
    sandbox = machine.cold_start(built_in=True)
    machine.run(sandbox, f"{WRITE}; mkdir /data; echo new > /data/mark; rm /usr/bin/env")
    for _ in range(2):
        sandbox, _ = machine.cycle(sandbox)
        assert machine.run(sandbox, READ) == EXPECTED
        assert machine.run(sandbox, "cat /data/mark; ls /usr/bin/env 2>/dev/null; true") == "new\n"
