"""The substrate's contract on real namespaces."""

from __future__ import annotations

import pytest

from flux.network.sink import TunSink
from flux.substrates.procbox.substrate import Procbox
from flux.testing.contracts.substrate import SubstrateContract


@pytest.fixture(scope="module")
def substrate(tmp_path_factory: pytest.TempPathFactory) -> Procbox:
    return Procbox(str(tmp_path_factory.mktemp("state")), sink=TunSink())


class TestProcbox(SubstrateContract):
    """Runs as whoever runs the tests."""
