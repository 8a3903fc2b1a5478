"""How this control plane reaches the managers of other nodes: their secrets on disk, their connections in memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from flux.app import secrets
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import checked_name

if TYPE_CHECKING:
    from flux.api.node.client import NodeClient
    from flux.ports.node import Node

DIRECTORY = "nodes"


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of one node: its token, and the certificate authority (PEM) that it is trusted by, if it has TLS."""

    token: str
    authority: str | None = None


class Contacts:
    """Finds nodes. Implements ``control.platform.Contacts`` and ``control.drive.Nodes``.

    Args:
        state_directory: where the secrets are kept, below ``nodes``.
        address_of: tells the registered address of a node's manager, ``None`` for an unknown one.
        local: the name of the node in this process, and the node, if there is one.
    """

    def __init__(
        self, state_directory: str, address_of: Callable[[str], str | None], local: tuple[str, Node] | None
    ) -> None:
        self._directory = os.path.join(state_directory, DIRECTORY)
        self._address_of = address_of
        self._local = local
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], NodeClient] = {}

    def node(self, name: str, address: str | None = None) -> Node:
        """Return a node by its name in the registry; ``address``: of one that is not registered yet.

        Raises:
            FluxError: ``not_found``; ``unavailable`` if its secrets are not here.
        """
        if self._local is not None and name == self._local[0]:
            return self._local[1]
        place = address or self._address_of(name)
        if place is None:
            raise FluxError(Code.NOT_FOUND, f"cannot find the node {printable(name)[:80]!r}: it is not registered")
        with self._lock:
            found = self._clients.get((name, place))
            if found is None:
                found = self._clients[name, place] = self._connect(name, place)
            return found

    def _connect(self, name: str, address: str) -> NodeClient:
        from flux.api.node.client import NodeClient

        contact = self._read(name)
        authority = None if contact.authority is None else contact.authority.encode()
        return NodeClient(address, contact.token, authority=authority)

    def authority(self, name: str) -> str | None:
        """Return the certificate authority that a node's data plane is trusted by."""
        return self._read(name).authority

    def add(self, name: str, token: str, authority: str | None) -> None:
        """Keep a node's secrets, replacing those that it had."""
        checked_name(name, "a node")
        if self._local is not None and name == self._local[0]:
            raise FluxError(Code.ALREADY_EXISTS, f"cannot add the node {name!r}: this process's own node is called so")
        if not token.isascii() or not token.isprintable() or not token:
            raise FluxError(Code.INVALID, "cannot add the node: its token is not what a file node.token holds")
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        secrets.write(self._file(name), msgspec.json.encode(Contact(token=token, authority=authority)))
        self._drop(name)

    def forget(self, name: str) -> None:
        """Forget a node's secrets. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(name))
        self._drop(name)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _drop(self, name: str) -> None:
        with self._lock:
            gone = [key for key in self._clients if key[0] == name]
            clients = [self._clients.pop(key) for key in gone]
        for client in clients:
            client.close()

    def _read(self, name: str) -> Contact:
        raw = secrets.read(self._file(name), f"the secrets of the node {name}")
        if raw is None:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot reach the node {printable(name)}: its token is not in this state directory; add the node here "
                "too: fluxctl node add",
            )
        return msgspec.json.decode(raw, type=Contact)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.json")
