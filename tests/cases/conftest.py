"""One daemon for the rows, on a disk of the rows' own: elsewhere a sync would wait for everybody's writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.disks import missing, mounted
from tests.cases.kit import Daemon, Program
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


@pytest.fixture(scope="session")
def daemon(disk: Path) -> Iterator[Daemon]:
    """A daemon that rows share; each makes a sandbox of its own."""
    home = disk / "daemon"
    home.mkdir()
    running = Daemon(home / "state")
    yield running
    running.close()


@pytest.fixture
def program(place: Path) -> Program:
    """The program with a state directory of its own and no daemon."""
    return Program(place / "state")


@pytest.fixture(scope="session")
def shared(disk: Path) -> Iterator[Platform]:
    """One daemon for the rows; each has sandboxes of its own."""
    with platform(disk / "life") as made:
        yield made


@pytest.fixture
def alone(place: Path) -> Iterator[Platform]:
    """A daemon of the row's own, for rows that kill it or wait for its time-outs."""
    with platform(place / "alone") as made:
        yield made
