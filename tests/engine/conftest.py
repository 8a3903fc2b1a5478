"""The engine under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.sandbox import Sandbox
from tests.engine.kit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.engine.close()


@pytest.fixture
def sandbox(kit: Kit) -> Sandbox:
    return kit.sandbox()
