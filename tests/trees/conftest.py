"""A second file system for tests whose state directory must not lie on the workspace's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, on another mount than ``tmp_path``."""
    if not os.access(MEMORY, os.W_OK) or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a writable /dev/shm on another file system than the temporary directory")
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)
