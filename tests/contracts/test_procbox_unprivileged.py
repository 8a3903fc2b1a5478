"""The substrate's contract without privileges: single-user namespaces, no cgroups, no devices."""

from __future__ import annotations

import re

from tests.contracts.unprivileged import run_as_nobody


def test_procbox_keeps_its_contract_without_privileges() -> None:
    said = run_as_nobody("tests/contracts/test_procbox.py::TestProcbox")
    assert re.search(r"\b[1-9]\d* passed in", said), said
    assert "skipped" not in said
