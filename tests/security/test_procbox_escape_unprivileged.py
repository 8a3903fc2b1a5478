"""The same ways out of a procbox that was started without privileges."""

from __future__ import annotations

import re

from tests.contracts.unprivileged import run_as_nobody


def test_nothing_gets_out_without_privileges_either() -> None:
    said = run_as_nobody("tests/security/test_procbox_escape.py")
    assert re.search(r"\b[1-9]\d* passed", said), said
