"""From a sandbox's record to what a substrate starts, and from a request to a command (spec: sandboxes)."""

from __future__ import annotations

import errno
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import IN_FLIGHT, NodeState
from flux.core.requests import StartProcess
from flux.core.sandbox import HOME, Sandbox, checked_environment
from flux.engine.context import Context, no_sandbox
from flux.engine.lifecycle import generations, users
from flux.engine.lifecycle.kinds import substrate
from flux.ports.substrate import Command, Instance, LaunchSpec, Limits, Mount, Overlay
from flux.store import sandboxes

SHELL = "/bin/sh"
_BASH = "/bin/bash"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARGUMENT_BYTES_MAX = 128 * 1024
_BUSY_TRIES = 40
_BUSY_SECONDS = 0.025


class Asked(Protocol):
    """What requests that run a command have in common."""

    command: str | None
    argv: list[str] | None
    environment: dict[str, str]
    cwd: str | None
    user: str | None
    timeout_seconds: float | None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an execution's files are on the host: its tree, home and temporary directory (``None``: in the tree)."""

    tree: str | Overlay
    home: str | Overlay | None
    scratch: str | None


def own_place(context: Context, sandbox: Sandbox, generation: int) -> Place:
    """Return the files of a generation of the real sandbox."""
    if sandbox.directory is None:
        return Place(tree=generations.overlay(context, sandbox, generation), home=None, scratch=None)
    state = context.stores.state
    return Place(
        tree=sandbox.directory,
        home=state.place("sandboxes", sandbox.id, "home"),
        scratch=state.place("sandboxes", sandbox.id, "tmp"),
    )


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
        network=sandbox.network if network else "none",
        net_ports=ports,
        hostname=sandbox.name or sandbox.id,
    )


def start(context: Context, sandbox: Sandbox) -> Instance:
    """Start the execution of a sandbox that runs, in place. Called with its start lock held (``Instances``).

    Raises:
        FluxError: ``illegal_state`` or ``unavailable`` if the sandbox is not running this generation any more.
    """
    with context.stores.database.reading() as tx:
        found = sandboxes.record(tx, sandbox.id)
    check_running(sandbox, found)
    return start_generation(context, sandbox, sandbox.generation)


def check_running(sandbox: Sandbox, found: Sandbox | None) -> None:
    """Refuse to use a sandbox, as it was read, unless its row ``found`` now says that it runs this generation.

    Raises:
        FluxError: ``not_found``, ``illegal_state``, or ``unavailable`` while somebody works on it.
    """
    if found is None or found.state is NodeState.DELETING:
        raise no_sandbox(sandbox.id)
    if found.state in IN_FLIGHT:
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot use the sandbox {sandbox.id}: it is {found.state}; try again when that is over",
            {"reason": "RowBusy", "state": found.state.value},
        )
    if found.state is not NodeState.RUNNING:
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot use the sandbox {sandbox.id}: it is {found.state}; resume it first",
            {"state": found.state.value},
        )
    if found.generation != sandbox.generation:
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot use generation {sandbox.generation} of the sandbox {sandbox.id}: it was resumed as generation "
            f"{found.generation} meanwhile; try again",
            {"reason": "StaleGeneration", "generation": found.generation},
        )


def start_generation(context: Context, sandbox: Sandbox, generation: int) -> Instance:
    """Start an execution on a generation's tree, whatever its row says.

    The kernel lets go of the layer that was written last only when everybody has closed what they had open in it. For
    a moment it is waited for; who still reads from it then does no harm, but linked names part when they are written.
    """
    place = own_place(context, sandbox, generation)
    run = substrate(context, sandbox.kind)
    for _ in range(_BUSY_TRIES):
        try:
            return run.start(spec(context, sandbox, place))
        except FluxError as error:
            if error.details.get("errno") != errno.EBUSY or not isinstance(place.tree, Overlay):
                raise
        threading.Event().wait(_BUSY_SECONDS)
    assert isinstance(place.tree, Overlay)
    shared = msgspec.structs.replace(place, tree=msgspec.structs.replace(place.tree, shared=True))
    return run.start(spec(context, sandbox, shared))


def arguments(asked: Asked) -> Sequence[str]:
    """Return the program and its arguments: ``argv`` as it is, a ``command`` through the shell.

    Raises:
        FluxError: ``invalid`` unless exactly one of the two is given.
    """
    if (asked.command is None) == (asked.argv is None):
        raise FluxError(
            Code.INVALID, "cannot run a command: give exactly one of command (a shell string) and argv (a list)"
        )
    return checked_arguments([SHELL, "-c", asked.command] if asked.command is not None else list(asked.argv or ()))


def checked_arguments(argv: Sequence[str]) -> Sequence[str]:
    """Return a program and its arguments if they can be given to one.

    Raises:
        FluxError: ``invalid``.
    """
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
    user = users.resolve(sandbox, instance, asked.user)
    return Command(
        argv=arguments(asked),
        environment=_environment(sandbox, user, asked.environment, terminal),
        cwd=_directory(sandbox, asked.cwd),
        uid=user.uid,
        gid=user.gid,
        terminal=terminal,
    )


def process(sandbox: Sandbox, instance: Instance, asked: StartProcess, *, terminal: bool) -> Command:
    """Return what to spawn for a process as its user would start it: home, shell and directory are the user's.

    Raises:
        FluxError: ``invalid``.
    """
    user = users.resolve(sandbox, instance, asked.user)
    shell = shell_of(sandbox, instance)
    own = {"HOME": user.home, "SHELL": shell}
    return Command(
        argv=checked_arguments(asked.argv),
        environment=_environment(sandbox, user, asked.environment, terminal, own),
        cwd=_from_home(sandbox, instance, user, asked.cwd),
        uid=user.uid,
        gid=user.gid,
        terminal=terminal,
    )


def shell_of(sandbox: Sandbox, instance: Instance) -> str:
    """Return the shell of a sandbox's users."""
    there = os.path.exists(_BASH) if sandbox.layout == "bound" else users.holds(instance.tree_descriptor, _BASH)
    return _BASH if there else SHELL


def _from_home(sandbox: Sandbox, instance: Instance, user: users.User, cwd: str | None) -> str:
    """Return an absolute directory; the home unless another one is asked for, the root where there is no home."""
    if not cwd:
        there = sandbox.layout == "bound" or users.holds(instance.tree_descriptor, user.home)
        return user.home if there else "/"
    if "\0" in cwd:
        raise FluxError(Code.INVALID, "cannot run a command there: cwd holds a NUL byte", {"field": "cwd"})
    if cwd == "~" or cwd.startswith("~/"):
        cwd = cwd[2:]
    return cwd if cwd.startswith("/") else os.path.normpath(f"{user.home}/{cwd}")


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


def _environment(
    sandbox: Sandbox,
    user: users.User,
    asked: Mapping[str, str],
    terminal: bool,
    own: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    return {
        "PATH": _PATH,
        "HOME": HOME,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": SHELL,
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color" if terminal else "dumb",
        **own,
        **sandbox.environment,
        **checked_environment(dict(asked)),
    }


def privileged() -> bool:
    """Tell whether Flux may give sandboxes any owner and user."""
    return os.geteuid() == 0
