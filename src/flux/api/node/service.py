"""The table of the service's calls: which method of ``ports.node.Node`` answers, with what, and within what time."""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from flux.api.node.generated import sandbox_manager_pb2 as pb
from flux.api.node.messages import Nothing
from flux.core import node

NAME = "flux.node.v1.SandboxManager"
DESCRIPTOR = pb.DESCRIPTOR.services_by_name["SandboxManager"]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call. ``deadline_seconds``: how long a client waits; the same request asked again joins what goes on."""

    method: str
    request: type[msgspec.Struct]
    reply: type[msgspec.Struct]
    deadline_seconds: float


CALLS = MappingProxyType(
    {
        "Create": Call(method="activate", request=node.Activate, reply=node.Activated, deadline_seconds=30),
        "Start": Call(method="activate", request=node.Activate, reply=node.Activated, deadline_seconds=30),
        "Suspend": Call(method="suspend", request=node.Suspend, reply=node.Suspended, deadline_seconds=120),
        "Stop": Call(method="stop", request=node.Stop, reply=node.Stopped, deadline_seconds=60),
        "Teardown": Call(method="tear_down", request=node.TearDown, reply=node.TornDown, deadline_seconds=120),
        "Evict": Call(method="evict", request=node.Evict, reply=Nothing, deadline_seconds=60),
        "Delete": Call(method="destroy", request=node.Destroy, reply=node.Destroyed, deadline_seconds=60),
        "Capture": Call(method="capture", request=node.Capture, reply=node.Captured, deadline_seconds=120),
        "Inventory": Call(method="inventory", request=node.Inventory, reply=node.Inventoried, deadline_seconds=60),
        "List": Call(method="list", request=Nothing, reply=node.Listed, deadline_seconds=30),
        "Describe": Call(method="describe", request=Nothing, reply=node.Described, deadline_seconds=10),
    }
)
