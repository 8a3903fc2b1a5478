"""The machine under test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.executions.kit import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root: an overlay without it keeps no owners")
    made = Machine(tmp_path)
    yield made
    made.context.close()
