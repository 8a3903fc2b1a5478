"""What every substrate must do about what listens in its sandboxes: a part of ``SubstrateContract``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from flux.core.errors import Code, FluxError
from flux.ports.substrate import CLOSED_PORT, NO_WAY_IN, Instance

if TYPE_CHECKING:
    from flux.testing.contracts.substrate import Running

#: Answers one connection in capitals; a program's quotes are the shell's too.
_LISTENER = """exec /usr/bin/python3 -c 'import socket
listener = socket.create_server(("{address}", 0), family=socket.{family})
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(connection.recv(16).upper())
'"""


def _connected(instance: Instance, port: int) -> socket.socket | None:
    """Connect to a port, ``None`` if nothing here may enter a sandbox, which only somebody without privileges says."""
    try:
        return instance.connect(port)
    except FluxError as error:
        if error.details.get("reason") != NO_WAY_IN:
            raise
        assert os.geteuid() != 0
        return None


class PortsContract:
    """The part of the suite. Its fixtures are the suite's."""

    @pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
    def test_what_listens_inside_is_connected_to(
        self, run: Callable[..., Running], instance: Instance, address: str
    ) -> None:
        running = run(_LISTENER.format(family="AF_INET6" if ":" in address else "AF_INET", address=address))
        port = int(running.line())
        connection = _connected(instance, port)
        if connection is None:
            return
        with connection:
            assert connection.gettimeout() is None
            connection.sendall(b"ping")
            assert connection.recv(16) == b"PING"
            assert connection.recv(16) == b""

    def test_a_port_at_which_nothing_listens_is_refused(self, instance: Instance) -> None:
        # This process has the port, and the sandbox's loopback is its own; nobody listens at it for the fake either.
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            with pytest.raises(FluxError) as caught:
                instance.connect(port)
        found = (caught.value.code, caught.value.details["reason"])
        assert found == (Code.UNAVAILABLE, CLOSED_PORT if os.geteuid() == 0 else found[1])
        assert found[1] in (CLOSED_PORT, NO_WAY_IN)

    def test_a_killed_sandbox_has_no_ports(self, instance: Instance) -> None:
        instance.kill()
        with pytest.raises(FluxError) as caught:
            instance.connect(80)
        assert caught.value.code is Code.UNAVAILABLE
        assert "reason" not in caught.value.details
