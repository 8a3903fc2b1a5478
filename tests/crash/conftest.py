"""Where crash tests run: in memory, so that a thousand syncs cost no waiting for a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.scenario import Scenario

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A directory on a file system that costs no waiting for a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture(scope="module", params=["area beside the journal", "area in the workspace"])
def scenario(request: pytest.FixtureRequest, memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    home = memory / request.param
    home.mkdir()
    together = request.param == "area beside the journal"
    return Scenario(home, home / "state" if together else tmp_path_factory.mktemp("state"))
