"""The kit as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.node.kit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)
