"""What E2B's SDKs send and expect as JSON; unknown fields of requests are passed over (spec: e2b, §3)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from flux.core import access, signature
from flux.core.access import Actor
from flux.core.control import Room, SandboxStatus
from flux.core.lifecycle import ControlState
from flux.core.sandbox import BASE_TEMPLATE, Sandbox

#: The version of E2B's own agent whose protocol the data plane speaks.
ENVD_VERSION = "0.6.13"
CLIENT_ID = "flux"
#: What is told as the end of a sandbox that has no time-out: the longest that there is.
_FOREVER_SECONDS = 10 * 365 * 86400


class Body(msgspec.Struct, kw_only=True, rename="camel"):
    """A request's body."""


class AutoResume(Body):
    """Whether use of a paused sandbox wakes it."""

    enabled: bool = False


class Network(Body):
    """What a sandbox's traffic is allowed; most of it is not supported here."""

    allow_public_traffic: bool | None = None
    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    dns_servers: list[str] | None = None
    egress_proxy: Any = None
    mask_request_host: str | None = None
    https_ports: list[int] | None = None
    rules: dict[str, Any] | None = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")


class NewSandbox(Body):
    """Create a sandbox. ``timeout`` in seconds."""

    template_id: str = msgspec.field(name="templateID")
    timeout: int | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")
    network: Network | None = None
    mcp: Any = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] | None = None


class Connect(Body):
    """Connect to a sandbox. ``memory``: there is none to restore, whatever is asked."""

    timeout: int | None = None
    memory: bool | None = None


class OldConnect(Body):
    """Connect to a sandbox, as older SDKs do."""

    timeout: int


class Resume(Body):
    """Resume a paused sandbox, as the oldest SDKs do."""

    timeout: int | None = None
    auto_pause: bool | None = None
    memory: bool | None = None


class Pause(Body):
    """Pause a sandbox."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class Timeout(Body):
    """Set a sandbox's time-out, in seconds from now."""

    timeout: int


class Refresh(Body):
    """Let a sandbox live at least so long from now, in seconds."""

    duration: int | None = None


class Snapshot(Body):
    """Take a snapshot."""

    name: str | None = None
    memory: bool | None = None


class Fork(Body):
    """Make sandboxes of one as it is."""

    timeout: int | None = None
    count: int | None = None


def template_of(sandbox: Sandbox) -> str:
    """Return what a sandbox was made from: a snapshot's id, or a template's name."""
    if sandbox.snapshot is not None:
        return sandbox.snapshot
    return sandbox.template_name or BASE_TEMPLATE


def made(status: SandboxStatus, actor: Actor, domain: str | None) -> dict[str, Any]:
    """Return a sandbox as whoever creates or connects to it is told of it."""
    sandbox = status.sandbox
    return {
        "templateID": template_of(sandbox),
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "domain": domain,
        **_alias(sandbox),
        **_token(status, actor),
        "trafficAccessToken": None if domain is None else _traffic_token(status, actor),
    }


def listed(status: SandboxStatus, room: Room) -> dict[str, Any]:
    """Return a sandbox as one of a list. It has started when it was made; what has no time-out ends very late."""
    sandbox = status.sandbox
    return {
        "templateID": template_of(sandbox),
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "startedAt": _time(sandbox.created_at),
        "endAt": _time(sandbox.expires_at or sandbox.created_at + _FOREVER_SECONDS),
        "cpuCount": math.ceil(sandbox.cpus or room.cpus),
        "memoryMB": sandbox.memory_mib or room.memory_mib,
        "diskSizeMB": room.disk_mib,
        "state": "running" if status.state is ControlState.RUNNING else "paused",
        "metadata": sandbox.metadata,
        "volumeMounts": [],
        **_alias(sandbox),
    }


def detail(status: SandboxStatus, actor: Actor, room: Room, domain: str | None) -> dict[str, Any]:
    """Return everything that is told of a sandbox."""
    sandbox = status.sandbox
    paused = {} if status.state is ControlState.RUNNING else {"pauseMode": "filesystem"}
    return {
        **listed(status, room),
        "allowInternetAccess": sandbox.internet,
        "domain": domain,
        "network": {} if sandbox.public_ports else {"allowPublicTraffic": False},
        "lifecycle": {"autoResume": sandbox.auto_resume, "onTimeout": sandbox.on_timeout},
        **paused,
        **_token(status, actor),
    }


def _alias(sandbox: Sandbox) -> dict[str, str]:
    return {} if sandbox.template_name is None else {"alias": sandbox.template_name}


def _traffic_token(status: SandboxStatus, actor: Actor) -> str | None:
    """Return what opens the ports of a sandbox, ``None`` if they are open to anybody, or closed to the actor."""
    token = _token(status, actor).get("envdAccessToken")
    return None if token is None or status.sandbox.has_public_ports else signature.traffic_token(token)


def _token(status: SandboxStatus, actor: Actor) -> dict[str, str]:
    bound = status.sandbox.layout == "bound"
    if status.token is None or not access.may_hold_token(actor, bound=bound):
        return {}
    return {"envdAccessToken": status.token}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
