"""The substrate's contract on real namespaces."""

from __future__ import annotations

import pytest

from flux.network.sink import TunSink
from flux.substrates.procbox.cgroups import Cgroups, Hierarchies
from flux.substrates.procbox.substrate import Procbox
from flux.testing.contracts.substrate import SubstrateContract


@pytest.fixture(scope="module")
def substrate(tmp_path_factory: pytest.TempPathFactory) -> Procbox:
    return Procbox(str(tmp_path_factory.mktemp("state")), sink=TunSink())


class TestProcbox(SubstrateContract):
    """Runs as whoever runs the tests."""


class TestProcboxWithoutCgroups(SubstrateContract):
    """Commands have keepers, and signals stop and kill."""

    @pytest.fixture
    def substrate(self, tmp_path_factory: pytest.TempPathFactory) -> Procbox:
        return Procbox(str(tmp_path_factory.mktemp("state")), cgroups=Cgroups(Hierarchies()))


class TestProcboxOnVersionOneCgroups(SubstrateContract):
    """The freezer stops and kills."""

    @pytest.fixture
    def substrate(self, tmp_path_factory: pytest.TempPathFactory) -> Procbox:
        split = Cgroups().hierarchies.split
        if "freezer" not in split:
            pytest.skip("needs a version 1 freezer: mount -t cgroup -o freezer none /sys/fs/cgroup/freezer")
        return Procbox(str(tmp_path_factory.mktemp("state")), cgroups=Cgroups(Hierarchies(split=split)))
