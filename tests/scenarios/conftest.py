"""Platforms of real processes that tests share, each on a disk of the tests' own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.disks import missing, mounted
from tests.scenarios.daemons import Platform, platform


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ext4 of its own, or an ordinary directory where nothing can be mounted."""
    if missing("ext4") is None:
        with mounted("ext4") as place:
            yield place
    else:
        yield tmp_path_factory.mktemp("disk")


@pytest.fixture
def place(disk: Path) -> Iterator[Path]:
    """A directory of the test's own on the disk."""
    with tempfile.TemporaryDirectory(dir=disk) as name:
        yield Path(name)


@pytest.fixture(scope="session", params=["all", "split"])
def anywhere(request: pytest.FixtureRequest, disk: Path) -> Iterator[Platform]:
    """One daemon with every role, then a control plane and a node as processes of their own."""
    # it may be made several times in one session, in the order that the tests call for
    place = Path(tempfile.mkdtemp(prefix=request.param, dir=disk))
    with platform(place / "platform", split=request.param == "split") as made:
        yield made
