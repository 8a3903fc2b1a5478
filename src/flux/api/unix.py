"""Unix sockets whose path is longer than a socket's address can hold (108 bytes)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_ADDRESS_BYTES_MAX = 107


@contextmanager
def address_of(path: str) -> Iterator[str]:
    """Yield a name for ``path`` that fits a socket's address, valid inside the block only."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connected(path: str) -> socket.socket:
    """Return a socket connected to ``path``. Raises ``OSError``."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            client.connect(address)
    except BaseException:
        client.close()
        raise
    return client
