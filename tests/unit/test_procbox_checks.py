"""What the doctor says about the built-in template, and which shell a sandbox's users get."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from flux.ports.substrate import Check
from flux.substrates.procbox import checks, etc
from flux.substrates.procbox.host import read_host


def finding(*, privileged: bool, present: Collection[str]) -> Check:
    host = msgspec.structs.replace(read_host(), privileged=privileged)
    return checks.template(host, lambda name: f"/usr/bin/{name}" if name in present else None)


def test_with_root_and_the_tools_the_template_is_usable() -> None:
    found = finding(privileged=True, present=("bash", "python3", "git"))
    assert (found.ok, found.detail) == (True, "the host has bash, python3, git for its sandboxes")


def test_missing_tools_are_named_with_what_brings_them() -> None:
    found = finding(privileged=True, present=("bash",))
    assert (found.ok, found.required, found.fix) == (False, False, "apt-get install python3 git")
    assert "no python3, git" in found.detail


def test_without_root_there_is_no_such_template_whatever_is_installed() -> None:
    found = finding(privileged=False, present=("bash", "python3", "git"))
    assert (found.ok, found.required, found.fix) == (False, False, "run Flux with sudo")
    assert "needs root" in found.detail


@pytest.mark.parametrize(
    ("present", "expected"),
    [(("/bin/bash", "/bin/sh"), "/bin/bash"), (("/bin/sh",), "/bin/sh"), ((), "/bin/sh")],
)
def test_the_login_shell_is_bash_where_there_is_one(present: tuple[str, ...], expected: str) -> None:
    assert etc.shell(lambda path: path in present) == expected
