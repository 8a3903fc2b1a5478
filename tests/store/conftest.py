"""What the store's tests stand on: a state directory on disk, real files, a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.store.stores import Stores
from flux.testing.clock import FakeClock
from flux.trees.files import SystemFiles


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def stores(state: Path, clock: FakeClock) -> Iterator[Stores]:
    opened = Stores(str(state), clock, SystemFiles())
    yield opened
    opened.close()
