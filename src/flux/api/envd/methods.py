"""How a service of the data plane says what it has: rows that ``connect`` serves (spec: e2b, §4).

Requests and replies are structs with names as on the wire; unknown fields are let pass, absent ones are defaults.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from flux.api.envd.call import Call


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message on the wire: JSON names in camel case, bytes in base64, 64-bit numbers as text."""


#: Sends one message of a stream; it waits while the caller reads slowly.
Emit: TypeAlias = Callable[[Message], Awaitable[None]]


class Unary(msgspec.Struct, frozen=True):
    """One message to one message. Errors are ``FluxError`` (``connect`` knows their codes)."""

    request: type[Message]
    call: Callable[[Call, Any], Awaitable[Message]]


class ServerStream(msgspec.Struct, frozen=True):
    """One message to a stream. ``call`` returns when the stream is over; it is cancelled when the caller hangs up.

    ``keepalive``: makes the message that is sent when nothing else was for a while.
    """

    request: type[Message]
    call: Callable[[Call, Any, Emit], Awaitable[None]]
    keepalive: Callable[[], Message]


class ClientStream(msgspec.Struct, frozen=True):
    """A stream of messages to one message."""

    request: type[Message]
    call: Callable[[Call, AsyncIterator[Any]], Awaitable[Message]]


Method: TypeAlias = Unary | ServerStream | ClientStream
