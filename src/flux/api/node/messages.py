"""Turns the values of ``core.node`` into protobuf messages and back; what is not in form is refused, never guessed.

Both have the same fields by the same names, so this goes by name: a missing message or ``optional`` field is the
struct's default, and a required one that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from flux.api.node.generated import sandbox_manager_pb2 as pb
from flux.core import node
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.route import checked_generation, checked_route, checked_sandbox_id, checked_token
from flux.core.sandbox import Sandbox

S = TypeVar("S", bound=msgspec.Struct)


class Nothing(msgspec.Struct, frozen=True):
    """A request or reply without fields."""


#: Which message carries which value, requests and replies.
MESSAGES: Mapping[type[msgspec.Struct], type[Message]] = MappingProxyType(
    {
        node.Activate: pb.Activate,
        node.Activated: pb.Activated,
        node.Suspend: pb.SuspendRequest,
        node.Suspended: pb.Suspended,
        node.Stop: pb.StopRequest,
        node.Stopped: pb.Stopped,
        node.TearDown: pb.TearDown,
        node.TornDown: pb.TornDown,
        node.Evict: pb.EvictRequest,
        node.Destroy: pb.Destroy,
        node.Destroyed: pb.Destroyed,
        node.Capture: pb.CaptureRequest,
        node.Captured: pb.Captured,
        node.Inventory: pb.InventoryRequest,
        node.Inventoried: pb.Inventoried,
        node.Listed: pb.Listed,
        node.Described: pb.Described,
    }
)


def encode(value: msgspec.Struct) -> Message:
    """Return the message that carries a value.

    Raises:
        FluxError: ``invalid`` for a text that is not UTF-8.
    """
    message = MESSAGES[type(value)]()
    try:
        _fill(message, value)
    except (ValueError, UnicodeError) as error:
        raise FluxError(
            Code.INVALID, f"cannot send {type(value).__name__} to the node: {printable(str(error))[:200]}"
        ) from error
    return message


def _fill(message: Message, value: msgspec.Struct) -> None:
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if item is None:
            continue
        if isinstance(item, Sandbox):
            setattr(message, name, msgspec.json.encode(item))
        elif isinstance(item, msgspec.Struct):
            target = getattr(message, name)
            target.SetInParent()
            _fill(target, item)
        elif isinstance(item, tuple):
            _extend(getattr(message, name), item)
        else:
            setattr(message, name, _plain(item))


def _extend(target: Any, items: tuple[Any, ...]) -> None:
    for item in items:
        if isinstance(item, msgspec.Struct):
            _fill(target.add(), item)
        else:
            target.append(_plain(item))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def decode(message: Message, shape: type[S]) -> S:
    """Return the value that a message carries.

    Raises:
        FluxError: ``invalid``, naming what is missing or not in form.
    """
    try:
        return msgspec.convert(_builtins(message), shape)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FluxError(
            Code.INVALID, f"cannot read the {shape.__name__} message: {printable(str(error))[:200]}"
        ) from error


def _builtins(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = tuple(_one(field, item) for item in value)
        else:
            found[field.name] = _one(field, value)
    return found


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _builtins(value)
    return msgspec.json.decode(value) if field.type == FieldDescriptor.TYPE_BYTES else value


def checked(request: S) -> S:
    """Return a request whose ids are in form (§2).

    Raises:
        FluxError: ``invalid``.
    """
    if hasattr(request, "sandbox_id"):
        checked_sandbox_id(request.sandbox_id)
    if hasattr(request, "node_store_id"):
        checked_token(request.node_store_id, "node_store_id")
    if isinstance(request, node.Activate):
        checked_route(request.route)
    elif hasattr(request, "execution"):
        checked_generation(request.execution.generation)
        checked_token(request.execution.pod_uid, "pod_uid")
    return request
