"""The control plane's operations are generators without I/O: what they yield, and what is sent back (§9).

``Point``: what stands above has happened. ``Send``: the node's reply is sent in, a ``FluxError`` is thrown in; one
with ``unknown_outcome``, or without the node's details, means that nobody knows. ``Nap``: come back after a while.
``control.drive`` does all this for real; a test's explorer delivers, repeats, delays and loses messages.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

import msgspec

from flux.core.node import Activate, Capture, Destroy, Evict, Inventory, Stop, Suspend, TearDown
from flux.failpoints import Point


class Describe(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a node which one it is; the reply is ``core.node.Described``. ``address``: of one not registered yet."""

    address: str | None = None


NodeRequest: TypeAlias = Activate | Suspend | TearDown | Destroy | Capture | Stop | Evict | Inventory | Describe


class Send(msgspec.Struct, frozen=True):
    """Ask a node, by its name in the registry. After ``timeout_seconds`` the outcome is unknown; ``None``: no limit."""

    node: str
    request: NodeRequest
    timeout_seconds: float | None = None


class Nap(msgspec.Struct, frozen=True):
    """Come back after ``seconds``; sooner if the row of the sandbox ``watching`` changes in this process."""

    seconds: float
    watching: str | None = None


T = TypeVar("T")

#: An operation of the control plane. What is sent in after a ``Send`` is the reply that the port's method returns.
Calls: TypeAlias = Generator[Point | Send | Nap, Any, T]
