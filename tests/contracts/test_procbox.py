"""The substrate's contract on real namespaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from flux.core.errors import FluxError
from flux.network.sink import TunSink
from flux.ports.substrate import NO_WAY_IN, Instance
from flux.substrates.procbox.cgroups import Cgroups, Hierarchies
from flux.substrates.procbox.substrate import Procbox
from flux.testing.contracts.substrate import Running, SubstrateContract

#: Takes one connection at a time, slower than they come, and has a queue for one.
_SLOW = """exec /usr/bin/python3 -c 'import socket, time
listener = socket.create_server(("127.0.0.1", 0), backlog=0)
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    time.sleep(0.02)
    connection.sendall(connection.recv(16).upper())
    connection.close()
'"""


@pytest.fixture(scope="module")
def substrate(tmp_path_factory: pytest.TempPathFactory) -> Procbox:
    return Procbox(str(tmp_path_factory.mktemp("state")), sink=TunSink())


class TestProcbox(SubstrateContract):
    """Runs as whoever runs the tests."""

    def test_a_listener_whose_queue_is_full_is_asked_again(
        self, run: Callable[..., Running], instance: Instance
    ) -> None:
        port = int(run(_SLOW).line())
        if os.geteuid() != 0:  # nobody else may enter a sandbox's network
            with pytest.raises(FluxError) as refused:
                instance.connect(port)
            assert refused.value.details["reason"] == NO_WAY_IN
            return

        def served(_: int) -> bytes:
            with instance.connect(port) as connection:
                # Speaks first: only that tells a listener who missed the last step of the handshake.
                connection.sendall(b"served")
                return connection.recv(16)

        with ThreadPoolExecutor(16) as threads:
            assert set(threads.map(served, range(32))) == {b"SERVED"}


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
