"""Connections to what listens inside of a running sandbox (spec: e2b, §2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flux.core import access
from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.ports.substrate import CLOSED_PORT, Instance

if TYPE_CHECKING:
    import socket

PORT_MAX = 65535


def connect_port(context: Context, actor: Actor, reference: str, port: int) -> socket.socket:
    """Return a connection to a port of a sandbox's own loopback; no execution is started for it.

    Raises:
        FluxError: ``not_found``, ``invalid``; ``unavailable`` as ``Instance.connect`` raises it.
    """
    if not 1 <= port <= PORT_MAX:
        raise FluxError(Code.INVALID, f"cannot connect to port {port}: a port is 1 to {PORT_MAX}", {"field": "port"})
    sandbox = context.sandbox(actor, reference)
    access.permit_direct_change(actor, bound=sandbox.layout == "bound")
    with (
        context.locks.sandbox(sandbox.id),
        context.instances.live(sandbox.id, sandbox.generation, lambda: _refuse(sandbox, port)) as instance,
    ):
        return instance.connect(port)


def _refuse(sandbox: Sandbox, port: int) -> Instance:
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot connect to port {port} of the sandbox {sandbox.id}: nothing of it runs at the moment; start a server "
        "in it",
        {"reason": CLOSED_PORT, "port": port},
    )
