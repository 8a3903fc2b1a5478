"""What runs sandboxes. One contract suite (``flux.testing``) holds every implementation to this page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from flux.core.changeset import Flow

if TYPE_CHECKING:
    import socket

#: Why ``Instance.connect`` fails, as ``details["reason"]``: nothing listens; or nothing here may enter a sandbox.
CLOSED_PORT = "closed-port"
NO_WAY_IN = "no-way-in"


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A read-only directory of the host that a sandbox sees. Both paths absolute."""

    source: str
    target: str


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """An overlay to mount: a writable layer over ``lower`` directories, nearest first.

    ``lower_descriptor`` (an open directory, such as another sandbox's merged tree) takes the place of ``lower``.
    ``below``: another overlay, mounted first and out of sight, whose root is the last lower layer.
    ``throwaway``: what is written need not survive a crash of the machine, so nothing is synced.
    ``shared``: a lower layer is, or was just now, the writable layer of another overlay; the kernel takes it only
    without the index that keeps linked names together.
    """

    lower: tuple[str, ...]
    upper: str
    work: str
    lower_descriptor: int | None = None
    below: Overlay | None = None
    throwaway: bool = False
    shared: bool = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one sandbox; ``None`` leaves a bound off. Sizes in MiB, ``cpus`` in whole processors' time."""

    memory_mib: int | None = None
    pids: int | None = None
    cpus: float | None = None
    file_mib: int | None = None


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an execution of a sandbox is made from.

    ``tree``: the workspace, as a directory to bind or an overlay to mount. ``layout``: ``bound`` puts it at ``/work``
    with the host's system directories read-only beside it; ``managed`` makes it ``/``. ``home`` and ``scratch`` are
    directories that become ``/home/user`` and ``/tmp``; ``home`` may be an overlay. Either is ``None`` for the tree's
    own (managed only). ``hidden``: directories of the host that show as empty wherever the sandbox would see them.
    ``lower_descriptor`` of an overlay may be the ``tree_descriptor`` of an instance that is alive. ``network``:
    ``none`` refuses and records every attempt; ``ports`` allows TCP to ``net_ports`` only; ``internet`` allows TCP and
    UDP to any public address.
    """

    sandbox_id: str
    layout: Literal["bound", "managed"]
    tree: str | Overlay
    home: str | Overlay | None
    scratch: str | None
    mounts: tuple[Mount, ...] = ()
    hidden: tuple[str, ...] = ()
    limits: Limits = Limits()
    network: Literal["none", "ports", "internet"] = "none"
    net_ports: tuple[int, ...] = ()
    hostname: str = "flux"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One program to run in a sandbox. ``cwd`` absolute inside it. ``environment`` is complete, not an addition."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    uid: int
    gid: int
    terminal: bool = False


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: exactly one of ``code`` and ``signal`` is set."""

    code: int | None = None
    signal: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox uses now. Memory in bytes, ``cpu_seconds`` since its start.

    ``cache``: the part of ``memory`` that is of files and can be given back; 0 where nobody counts it.
    """

    processes: int
    memory: int
    cpu_seconds: float
    cache: int = 0


class Process(Protocol):
    """A command that runs in a sandbox."""

    @property
    def pid(self) -> int:
        """The process id as the sandbox sees it."""
        ...

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Wait for the command itself (not its background children); ``None`` if ``timeout`` seconds passed."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the command; nothing happens if it has ended."""
        ...

    def kill_tree(self) -> None:
        """Kill the command and every process that came from it, double forks included; return when all are dead."""
        ...


class Instance(Protocol):
    """A running execution of a sandbox."""

    @property
    def tree_descriptor(self) -> int:
        """An open directory: the workspace as the sandbox sees it. Readable also after ``kill``, until ``close``."""
        ...

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> Process:
        """Start a command with the given descriptors (the caller keeps and closes its own copies).

        Raises:
            FluxError: ``invalid`` (no such program, bad cwd), ``unavailable`` (the sandbox ended), ``exhausted``.
        """
        ...

    def open_terminal(self, uid: int) -> tuple[int, int]:
        """Return master and slave of a new terminal that the sandbox knows by name and ``uid`` may use; close both.

        Raises:
            FluxError: ``exhausted`` if there are too many.
        """
        ...

    def alive(self) -> bool:
        """Tell whether the init still runs."""
        ...

    @property
    def end_descriptor(self) -> int:
        """A descriptor that becomes readable when the init has ended; the instance's own, open until ``close``."""
        ...

    def freeze(self) -> None:
        """Stop every process of the sandbox until ``thaw``; processes started meanwhile wait too.

        Raises:
            FluxError: ``unavailable`` if one cannot be stopped within a bounded time; all run on then.
        """
        ...

    def thaw(self) -> None:
        """Let the processes run on."""
        ...

    def connect(self, port: int) -> socket.socket:
        """Return a connection to what listens at a TCP port of the sandbox's own loopback, IPv4 before IPv6; close it.

        Raises:
            FluxError: ``unavailable``, with ``details`` ``reason`` ``CLOSED_PORT`` if nothing listens there, and
                ``NO_WAY_IN`` without the privileges to enter a sandbox's network; ``exhausted``.
        """
        ...

    def flows(self) -> list[Flow] | None:
        """Return what the kernel saw of the network so far, one per destination; ``None`` where unobservable."""
        ...

    def network_enforced(self) -> bool:
        """Tell whether the kernel enforces the declared network."""
        ...

    def usage(self) -> Usage:
        """Return what the sandbox uses."""
        ...

    def kill(self) -> None:
        """Kill every process and return when all are dead. Idempotent."""
        ...

    def close(self) -> None:
        """Kill, then release descriptors, cgroups and devices. Idempotent."""
        ...


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a substrate can do here. ``connects``: it can give a sandbox the internet."""

    can_fork: bool
    keeps_memory: bool
    enforces_limits: bool
    observes_network: bool
    keeps_owners: bool
    connects: bool = False


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding of ``fluxctl doctor``: whether ``subject`` works here, why not, and the command that would fix it."""

    subject: str
    ok: bool
    detail: str
    fix: str | None = None
    required: bool = True


class Substrate(Protocol):
    """A way to run sandboxes."""

    @property
    def kind(self) -> str:
        """The name in ``fluxctl sandbox create --kind``."""
        ...

    def capabilities(self) -> Capabilities:
        """Return what works on this machine."""
        ...

    def start(self, spec: LaunchSpec) -> Instance:
        """Start an execution.

        Raises:
            FluxError: ``unavailable`` if set-up failed (mount refused, no space), ``invalid`` for an impossible spec.
        """
        ...

    def base_template(self, upper: str, *, saved: bool = False) -> tuple[str, ...]:
        """Lay the built-in template under ``upper``, a managed sandbox's writable layer that may be empty yet.

        ``saved``: saved layers of a sandbox over it lie on ``upper``, which is the layer of an overlay ``below`` them;
        they hold all that the template writes for a sandbox. What they show of the host must show here, and what is to
        stay hidden must be hidden.

        Returns:
            The lower layers, nearest first. Called before every start, as what is below may have changed.

        Raises:
            FluxError: ``unavailable`` or ``exhausted`` if it cannot be made there.
        """
        ...

    def check(self) -> list[Check]:
        """Return the findings for ``fluxctl doctor``."""
        ...
