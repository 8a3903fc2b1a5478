"""From a request to the record of a sandbox: what may be bound, names, time-outs, bounds (spec: sandboxes)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from flux.core import access, paths
from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.policy import checked_ports
from flux.core.requests import CreateSandbox, MountRequest
from flux.core.sandbox import (
    BASE_TEMPLATE,
    RESERVED_TARGETS,
    Sandbox,
    SandboxMount,
    checked_environment,
    checked_name,
    checked_text,
)
from flux.engine import ids
from flux.engine.context import Context
from flux.engine.lifecycle import kinds, roots
from flux.engine.locks import Extent
from flux.store import keys

_NANOSECONDS = 1_000_000_000
_TTL_MAX_SECONDS = 10 * 365 * 86400
# What the kernel takes: more memory or processes overflow its counters, and less time is no share of a period.
_MEMORY_MIB_MAX = 1 << 40
_PIDS_MAX = (1 << 22) - 1
_CPUS = (0.01, 1024.0)


def build_record(context: Context, actor: Actor, request: CreateSandbox) -> Sandbox:
    """Return the record of the sandbox that a request asks for; nothing is made yet.

    One that starts from a snapshot is over no template yet: the control plane knows the snapshot's.

    Raises:
        FluxError: ``invalid``, ``denied``, ``not_found`` (a template), ``conflict`` (the directory is gone).
    """
    kind = request.kind or context.settings.default_kind
    kinds.substrate(context, kind)
    ttl = _checked_ttl(request)
    moment = context.moment()
    owner = _owner(context, actor, request)
    workspace, template, identity = _tree(context, actor, request)
    return Sandbox(
        id=ids.sandbox(),
        kind=kind,
        layout="bound" if workspace else "managed",
        state=NodeState.CREATED,
        created_at=moment.wall,
        root_device=identity[0],
        root_inode=identity[1],
        name=checked_name(request.name),
        workspace=None if workspace is None else paths.portable(workspace),
        template=None if template is None else paths.portable(template.directory),
        built_in=template is not None and template.built_in,
        net_ports=checked_ports(request.net_ports),
        mounts=_checked_mounts(context, actor, request.mounts),
        environment=checked_text(checked_environment(dict(request.environment)), "environment"),
        memory_mib=_within(request.memory_mib, "memory_mib", _MEMORY_MIB_MAX),
        cpus=_checked_cpus(request.cpus),
        pids=_within(request.pids, "pids", _PIDS_MAX),
        ttl_seconds=ttl,
        expires_at=None if ttl is None else moment.wall + ttl,
        boot_id=moment.boot_id,
        expires_boot_ns=moment.boot_ns + (ttl or 0) * _NANOSECONDS,
        on_timeout=request.on_timeout,
        metadata=checked_text(dict(request.metadata), "metadata"),
        owner=owner,
        template_name=None if template is None else template.name,
        internet=request.internet,
        auto_resume=request.auto_resume,
        public_ports=request.public_ports,
    )


def _owner(context: Context, actor: Actor, request: CreateSandbox) -> str | None:
    if request.owner is None:
        return actor.key_id
    access.permit_owner(actor)
    with context.stores.database.reading() as tx:
        key = keys.named_in_force(tx, request.owner)
    if key is None:
        raise FluxError(
            Code.INVALID,
            f"cannot create a sandbox for {paths.printable(request.owner)[:80]!r}: no key in force has that id or name",
            {"field": "owner"},
        )
    return key.id


class _Template(msgspec.Struct, frozen=True, kw_only=True):
    """What a managed sandbox's tree lies over."""

    name: str
    directory: str
    built_in: bool


def _tree(
    context: Context, actor: Actor, request: CreateSandbox
) -> tuple[str | None, _Template | None, tuple[int, int]]:
    """Return the bound directory, or the template of a managed one, with the identity of that directory."""
    if request.workspace is not None and request.template is not None:
        raise FluxError(Code.INVALID, "cannot create the sandbox: give a workspace or a template, not both")
    if request.snapshot is not None:
        if request.workspace is not None or request.template is not None:
            raise FluxError(
                Code.INVALID,
                "cannot create the sandbox: a snapshot has its files and its template; leave workspace and template "
                "out",
                {"field": "snapshot"},
            )
        return None, None, (0, 0)
    if request.workspace is None:
        template = _template(context, request.template or context.settings.default_template)
        return None, template, roots.extent(template.directory).root
    access.permit_host_directories(actor)
    workspace = checked_workspace(context, request.workspace)
    return workspace, None, roots.extent(workspace).root


def has_template(context: Context, name: str) -> bool:
    """Tell whether there is a template of that name."""
    try:
        _template(context, name)
    except FluxError:
        return False
    return True


def _template(context: Context, name: str) -> _Template:
    """Find a template: a directory of the administrator's, or else the built-in one."""
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise FluxError(Code.INVALID, f"cannot use the template {paths.printable(name)[:80]!r}: it is not a name")
    holder = context.settings.template_root
    path = None if holder is None else os.path.realpath(os.path.join(holder, name))
    if path is not None and os.path.isdir(path):
        return _Template(name=name, directory=path, built_in=False)
    if name == BASE_TEMPLATE:
        return _Template(name=name, directory="/", built_in=True)
    place = "no template_root is set under [sandbox.procbox]" if holder is None else f"{holder} holds no such directory"
    raise FluxError(
        Code.NOT_FOUND,
        f"cannot find the template {paths.printable(name)!r}: {place}; use {BASE_TEMPLATE}, the built-in one",
        {"field": "template"},
    )


def checked_workspace(context: Context, asked: str) -> str:
    """Return the real path of a directory that may be bound.

    Raises:
        FluxError: ``invalid`` if it is relative, not there, no directory, ``/``, or overlaps Flux's own state;
            ``denied`` if it cannot be read.
    """
    shown = paths.printable(asked)[:200]
    if not asked.startswith("/") or "\0" in asked:
        raise _bad_workspace(shown, "its path is not absolute; give it from / on")
    if not os.path.isdir(asked):
        if os.path.lexists(asked):
            raise _bad_workspace(shown, "it is not a directory; give the directory that it is in")
        raise _bad_workspace(shown, "there is no such directory; create it first")
    path = os.path.realpath(asked)
    if path == "/":
        raise _bad_workspace(shown, "/ would bind the whole host; give a project's directory")
    descriptor = roots.open_directory(path)
    try:
        mine = roots.extent(path, descriptor)
    finally:
        os.close(descriptor)
    if mine.overlaps(roots.extent(context.stores.state.path)):
        raise _bad_workspace(shown, "it contains, or lies in, Flux's state directory; choose another one of the two")
    return path


def _bad_workspace(shown: str, reason: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot bind the workspace {shown}: {reason}", {"field": "workspace"})


def _checked_mounts(context: Context, actor: Actor, asked: Sequence[MountRequest]) -> tuple[SandboxMount, ...]:
    if asked:
        access.permit_host_directories(actor)
    state = roots.extent(context.stores.state.path)
    return tuple(_checked_mount(mount, state) for mount in asked)


def _checked_mount(mount: MountRequest, state: Extent) -> SandboxMount:
    target = paths.normalise(mount.target)
    source = os.path.realpath(mount.source)
    reason = None
    if mount.source.startswith("/") and not os.path.lexists(source):
        reason = "its source does not exist"
    elif not mount.source.startswith("/") or not os.path.isdir(source) or source == "/":
        reason = "its source is not the absolute path of a directory below /"
    elif any(paths.is_within(target, place) for place in RESERVED_TARGETS) or target == paths.ROOT:
        reason = "its target is where the sandbox keeps something of its own"
    elif roots.extent(source).overlaps(state):
        reason = "its source contains, or lies in, Flux's state directory"
    if reason is not None:
        shown = paths.printable(f"{mount.source}:{mount.target}")[:200]
        raise FluxError(Code.INVALID, f"cannot mount {shown}: {reason}; choose another", {"field": "mounts"})
    return SandboxMount(source=paths.portable(source), target=paths.portable(target))


def _checked_ttl(request: CreateSandbox) -> int | None:
    ttl = _at_least(request.ttl_seconds, "ttl_seconds", 1)
    if ttl is not None and ttl > _TTL_MAX_SECONDS:
        raise FluxError(Code.INVALID, "cannot create the sandbox: ttl_seconds is too large", {"field": "ttl_seconds"})
    return ttl


def _at_least(value: int | None, field: str, least: int) -> int | None:
    if value is not None and value < least:
        raise FluxError(
            Code.INVALID,
            f"cannot create the sandbox: {field} is {value}, and at least {least} is needed",
            {"field": field},
        )
    return value


def _within(value: int | None, field: str, most: int) -> int | None:
    if value is not None and value > most:
        raise FluxError(Code.INVALID, f"cannot create the sandbox: {field} is more than {most}", {"field": field})
    return _at_least(value, field, 1)


def _checked_cpus(cpus: float | None) -> float | None:
    least, most = _CPUS
    if cpus is not None and not least <= cpus <= most:
        raise FluxError(
            Code.INVALID,
            f"cannot create the sandbox: cpus is {cpus:g}, and {least:g} to {most:g} processors can be had",
            {"field": "cpus"},
        )
    return cpus
