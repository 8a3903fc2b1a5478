"""From a sandbox's record to what a substrate starts, and from a request to a command (spec: sandboxes)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.sandbox import HOME, Sandbox, checked_environment
from flux.engine.context import Context
from flux.engine.lifecycle import users
from flux.ports.substrate import Command, Instance, LaunchSpec, Limits, Mount, Overlay, Substrate

SHELL = "/bin/sh"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARGUMENT_BYTES_MAX = 128 * 1024


class Asked(Protocol):
    """What requests that run a command have in common."""

    command: str | None
    argv: list[str] | None
    environment: dict[str, str]
    cwd: str | None
    user: str | None
    timeout_seconds: float | None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an execution's files are on the host: its tree, home (``None``: in the tree) and temporary directory."""

    tree: str | Overlay
    home: str | Overlay | None
    scratch: str


def lower_layers(context: Context, sandbox: Sandbox) -> tuple[str, ...]:
    """Return what a managed sandbox's tree lies over, nearest first; the built-in template is laid there anew."""
    if not sandbox.built_in:
        return (sandbox.lower,)
    upper = context.stores.state.place("sandboxes", sandbox.id, "layer", "upper")
    return substrate(context, sandbox.kind).base_template(upper)


def own_place(context: Context, sandbox: Sandbox) -> Place:
    """Return the real sandbox's own files."""
    state = context.stores.state
    layer = state.place("sandboxes", sandbox.id, "layer")
    return Place(
        tree=sandbox.directory
        or Overlay(lower=lower_layers(context, sandbox), upper=f"{layer}/upper", work=f"{layer}/work"),
        home=state.place("sandboxes", sandbox.id, "home") if sandbox.layout == "bound" else None,
        scratch=state.place("sandboxes", sandbox.id, "tmp"),
    )


def substrate(context: Context, kind: str) -> Substrate:
    """Return the substrate of a kind.

    Raises:
        FluxError: ``invalid`` if there is none.
    """
    found = context.substrates.get(kind)
    if found is None:
        known = ", ".join(sorted(context.substrates)) or "none"
        raise FluxError(
            Code.INVALID,
            f"cannot run a sandbox of the kind {paths.printable(kind)[:80]!r}: the kinds here are {known}",
            {"field": "kind", "known": sorted(context.substrates)},
        )
    return found


def spec(context: Context, sandbox: Sandbox, place: Place, *, network: bool = True) -> LaunchSpec:
    """Return what to start; without ``network`` the execution has none, whatever the sandbox has."""
    ports = sandbox.net_ports if network else ()
    settings = context.settings
    return LaunchSpec(
        sandbox_id=sandbox.id,
        layout=sandbox.layout,
        tree=place.tree,
        home=place.home,
        scratch=place.scratch,
        mounts=tuple(
            Mount(source=paths.from_portable(mount.source), target=paths.from_portable(mount.target))
            for mount in sandbox.mounts
        ),
        hidden=(context.stores.state.path,),
        limits=Limits(
            memory_mib=sandbox.memory_mib or settings.memory_mib,
            pids=sandbox.pids or settings.pids,
            cpus=sandbox.cpus or settings.cpus,
        ),
        network="ports" if ports else "none",
        net_ports=ports,
        hostname=sandbox.name or sandbox.id,
    )


def start(context: Context, sandbox: Sandbox) -> Instance:
    """Start the sandbox's own execution."""
    return substrate(context, sandbox.kind).start(spec(context, sandbox, own_place(context, sandbox)))


def arguments(asked: Asked) -> Sequence[str]:
    """Return the program and its arguments: ``argv`` as it is, a ``command`` through the shell.

    Raises:
        FluxError: ``invalid`` unless exactly one of the two is given.
    """
    if (asked.command is None) == (asked.argv is None):
        raise FluxError(
            Code.INVALID, "cannot run a command: give exactly one of command (a shell string) and argv (a list)"
        )
    argv = [SHELL, "-c", asked.command] if asked.command is not None else list(asked.argv or ())
    if not argv or not argv[0]:
        raise FluxError(Code.INVALID, "cannot run a command: argv is empty; its first element is the program")
    for argument in argv:
        if "\0" in argument or len(paths.to_bytes(argument)) >= _ARGUMENT_BYTES_MAX:
            raise FluxError(
                Code.INVALID,
                f"cannot run a command: an argument has a NUL byte or {_ARGUMENT_BYTES_MAX} bytes or more; "
                "pass long input through stdin or a file",
            )
    return argv


def shown(asked: Asked) -> str:
    """Return the command as a person would type it."""
    return asked.command if asked.command is not None else shlex.join(asked.argv or ())


def timeout_seconds(context: Context, asked: Asked) -> float:
    """Return how long the command may take.

    Raises:
        FluxError: ``invalid`` if the request says something impossible.
    """
    seconds = asked.timeout_seconds
    most = context.settings.exec_timeout_max_seconds
    if seconds is None:
        return context.settings.exec_timeout_seconds
    if not 0 < seconds <= most:
        raise FluxError(
            Code.INVALID,
            f"cannot run a command for {seconds:g} s: timeout_seconds is more than 0 and at most {most:g}",
            {"field": "timeout_seconds"},
        )
    return seconds


def command(sandbox: Sandbox, instance: Instance, asked: Asked, *, terminal: bool = False) -> Command:
    """Return what to spawn for a request: its environment complete, its user resolved, its directory absolute."""
    user = users.resolve(instance, asked.user)
    return Command(
        argv=arguments(asked),
        environment=_environment(sandbox, user, asked.environment, terminal),
        cwd=_directory(sandbox, asked.cwd),
        uid=user.uid,
        gid=user.gid,
        terminal=terminal,
    )


def _directory(sandbox: Sandbox, cwd: str | None) -> str:
    if cwd is None:
        return sandbox.place
    if not cwd.startswith("/") or "\0" in cwd:
        raise FluxError(
            Code.INVALID,
            f"cannot run a command in {paths.printable(cwd)[:80]!r}: cwd is an absolute path inside the sandbox",
            {"field": "cwd"},
        )
    return cwd


def _environment(sandbox: Sandbox, user: users.User, asked: Mapping[str, str], terminal: bool) -> dict[str, str]:
    return {
        "PATH": _PATH,
        "HOME": HOME,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": SHELL,
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color" if terminal else "dumb",
        **sandbox.environment,
        **checked_environment(dict(asked)),
    }


def privileged() -> bool:
    """Tell whether Flux may give sandboxes any owner and user."""
    return os.geteuid() == 0
