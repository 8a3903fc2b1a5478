"""Sandboxes as values: what is remembered of one, and the states of its life (spec: sandboxes)."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.paths import from_portable, is_utf8, printable

Layout = Literal["bound", "managed"]

#: Where a bound workspace is mounted, and what is private beside it.
WORK = "/work"
HOME = "/home/user"
TEMPORARY = "/tmp"
RESERVED_TARGETS = (WORK, "/home", TEMPORARY, "/proc", "/sys", "/dev", "/run")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: The built-in template's name.
BASE_TEMPLATE = "base"


class SandboxMount(msgspec.Struct, frozen=True, kw_only=True):
    """A read-only directory of the host (``source``) that the sandbox sees at ``target``; absolute, portable text."""

    source: str
    target: str


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one sandbox. Sizes in MiB, times in wall-clock seconds since the epoch.

    ``workspace`` is the bound directory, ``None`` for a managed sandbox over ``template`` (a host directory); both are
    in ``core.paths.portable`` form, since a record is JSON and a path is bytes. ``built_in``: over the
    template that the substrate makes of the host's system.
    ``root_device`` and ``root_inode`` identify the workspace's directory as it was at creation. ``owner`` is the id of
    the key that created it. ``snapshot``: the id of the artifact that it was made from, if it was. ``internet``: it may
    reach any public address. ``auto_resume``: use of its data plane wakes it. ``public_ports``: a
    managed one's take no token. ``state`` and ``generation`` (0: none ever ran) are those of its row where it comes
    from a node's store. ``expires_boot_ns`` with ``boot_id`` measures the time-out within one boot.
    """

    id: str
    kind: str
    layout: Layout
    state: NodeState
    created_at: float
    root_device: int
    root_inode: int
    name: str | None = None
    workspace: str | None = None
    template: str | None = None
    net_ports: tuple[int, ...] = ()
    mounts: tuple[SandboxMount, ...] = ()
    environment: dict[str, str] = {}
    memory_mib: int | None = None
    cpus: float | None = None
    pids: int | None = None
    ttl_seconds: int | None = None
    expires_at: float | None = None
    boot_id: str = ""
    expires_boot_ns: int = 0
    on_timeout: Literal["kill", "pause"] = "kill"
    metadata: dict[str, str] = {}
    owner: str | None = None
    baseline_at: float | None = None
    built_in: bool = False
    generation: int = 0
    template_name: str | None = None
    snapshot: str | None = None
    internet: bool = False
    auto_resume: bool = False
    public_ports: bool = True

    @property
    def directory(self) -> str | None:
        """The bound directory's exact path."""
        return None if self.workspace is None else from_portable(self.workspace)

    @property
    def lower(self) -> str:
        """A managed sandbox's template directory, exactly."""
        return from_portable(self.template or "")

    @property
    def network(self) -> Literal["none", "ports", "internet"]:
        """The network that it is declared to have."""
        if self.internet:
            return "internet"
        return "ports" if self.net_ports else "none"

    @property
    def has_public_ports(self) -> bool:
        """Whether its ports are open to whoever knows its name, where the daemon has a domain for them."""
        return self.public_ports and self.layout == "managed"

    @property
    def place(self) -> str:
        """The workspace as the sandbox's own processes name it."""
        return WORK if self.layout == "bound" else "/"


def checked_name(name: str | None, what: str = "a sandbox") -> str | None:
    """Return the name of a sandbox, or of ``what`` else, if it is one.

    Raises:
        FluxError: ``invalid``.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise FluxError(
            Code.INVALID,
            f"cannot name {what} {printable(name)[:80]!r}: a name has 1 to 63 letters, digits, dots, dashes or "
            "underscores and starts with a letter or digit",
            {"field": "name"},
        )
    return name


def checked_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return environment variables that a program can be given.

    Raises:
        FluxError: ``invalid``, naming the variable.
    """
    for key, value in environment.items():
        if not _VARIABLE.fullmatch(key) or "\0" in value:
            raise FluxError(
                Code.INVALID,
                f"cannot set the environment variable {printable(key)[:80]!r}: a name has letters, digits and "
                "underscores only, a value no NUL byte",
                {"field": "environment"},
            )
    return environment


def checked_text(values: dict[str, str], field: str) -> dict[str, str]:
    """Return names and values that a record can hold.

    Raises:
        FluxError: ``invalid`` if one of them is not UTF-8.
    """
    if not all(is_utf8(key) and is_utf8(value) for key, value in values.items()):
        raise FluxError(Code.INVALID, f"cannot keep {field}: a name or value is not UTF-8", {"field": field})
    return values
