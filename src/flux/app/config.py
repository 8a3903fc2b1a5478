"""Configuration: ``flux.toml``, environment and flags, checked and turned into values (spec: sandboxes).

The first of these files that exists is read, the others are not looked at: ``--config F``, ``FLUX_CONFIG``,
``<state directory>/flux.toml``, ``/etc/flux/flux.toml``. An environment variable overrides the file, a flag overrides
both. A key that does not exist is an error that names the nearest one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from flux.core.changeset import ConflictScope
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.requests import CopyEngine

FILE_NAME = "flux.toml"
SYSTEM_FILE = "/etc/flux/flux.toml"
PREFIX = "FLUX_"
SEPARATOR = "__"
OTHER_VARIABLES = ("FLUX_CONFIG", "FLUX_SERVER", "FLUX_TOKEN", "FLUX_DEBUG")

_NEAR = 0.8


class Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A table of ``flux.toml``; the reference page is generated from the fields' descriptions."""


class ProcboxSection(Section, frozen=True):
    """``[sandbox.procbox]``: bounds of the sandboxes made of namespaces."""

    max_workspace_mib: Annotated[
        int, Meta(ge=1, description="Largest workspace that may be speculated on, in MiB; a larger one is refused.")
    ] = 4096
    memory_mib: Annotated[
        int | None,
        Meta(description="Memory of one sandbox, in MiB, if `create --memory-mib` does not say; unset: no bound."),
    ] = None
    cpus: Annotated[
        float | None,
        Meta(description="Processor time of one sandbox, in whole processors, unless `create --cpus` says otherwise."),
    ] = None
    pids: Annotated[int, Meta(ge=8, description="Processes and threads of one sandbox at the same time.")] = 1024
    disk_reserve_mib: Annotated[
        int,
        Meta(ge=0, description="A run is stopped when the state directory's file system has less left, in MiB."),
    ] = 64
    run_max_mib: Annotated[
        int | None,
        Meta(description="A run is stopped when what it wrote takes more, in MiB; unset: `max_workspace_mib`."),
    ] = None
    template_root: Annotated[
        str | None,
        Meta(description="Directory whose subdirectories are the templates of managed workspaces."),
    ] = None
    default_template: Annotated[str, Meta(description="Template when `create` names none; `base` is built in.")] = (
        "base"
    )


class SandboxSection(Section, frozen=True):
    """``[sandbox]``: defaults of new sandboxes and their commands."""

    default_kind: Annotated[str, Meta(description="Kind of a sandbox when `create --kind` is not given.")] = "procbox"
    exec_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Seconds after which a command and everything it started is killed.")
    ] = 300.0
    egress_allow_domains: Annotated[
        tuple[str, ...],
        Meta(description="Domain names that every sandbox may reach, where its kind can tell names."),
    ] = ()
    procbox: ProcboxSection = ProcboxSection()


class SpeculationSection(Section, frozen=True):
    """``[speculation]``: how commands are tried out and how long and how large changesets may be."""

    copy_engine: Annotated[
        CopyEngine,
        Meta(description="How the throwaway copy is made; a forced one that cannot keep fidelity is an error."),
    ] = "auto"
    conflict_scope: Annotated[
        ConflictScope,
        Meta(description="What must not have changed before an apply: `all` of the paths, or what is `touched` only."),
    ] = "all"
    ttl_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="Seconds that a changeset waits for its decision, by default.")
    ] = 3600
    retention_seconds: Annotated[
        int, Meta(ge=0, description="Seconds that a finished changeset, and what its revert needs, is kept.")
    ] = 86400
    max_file_mib: Annotated[int, Meta(ge=1, description="Largest staged file, in MiB.")] = 16
    max_total_mib: Annotated[int, Meta(ge=1, description="All staged files of one changeset together, in MiB.")] = 64
    max_output_kib: Annotated[
        int, Meta(ge=1, description="Kept part of each of the command's stdout and stderr, in KiB.")
    ] = 64
    max_preimages_mib: Annotated[
        int, Meta(ge=0, description="Kept former contents of touched files, for diffs, per changeset, in MiB.")
    ] = 64
    revert_max_mib: Annotated[
        int, Meta(ge=0, description="Largest amount that one apply may keep so that it can be reverted, in MiB.")
    ] = 1024


class NodeSection(Section, frozen=True):
    """``[node]``: the node that this process is, where it runs sandboxes (roles `all` and `node`)."""

    name: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="What the control plane calls the node."),
    ] = "local"
    listen: Annotated[
        str,
        Meta(pattern=r"^.+:[0-9]{1,5}$", description="Address for the control plane (gRPC), `HOST:PORT`; role `node`."),
    ] = "127.0.0.1:7789"
    advertise: Annotated[
        str | None,
        Meta(
            description="URL at which the control plane reaches this node's data plane, if not where it listens; "
            "role `node`."
        ),
    ] = None
    evict_idle_seconds: Annotated[
        float,
        Meta(gt=0, description="A paused, uploaded sandbox leaves the node's disk after so many idle seconds."),
    ] = 3600.0
    disk_high_watermark: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Used part of the state directory's file system above which sandboxes leave it before that.",
        ),
    ] = 0.85
    upload_at_once: Annotated[int, Meta(ge=1, le=16, description="Uploads of artifacts at the same time.")] = 2


class ControlSection(Section, frozen=True):
    """``[control]``: the control plane (roles `all` and `control`)."""

    database_url: Annotated[
        str | None,
        Meta(
            description="The registry: `postgresql://…`, run with synchronous failover; unset: `control.db` in the "
            "state directory."
        ),
    ] = None
    wake_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Seconds after which a connect or resume that could not wake gives up.")
    ] = 45.0
    wake_generations: Annotated[
        int, Meta(ge=1, le=16, description="Generations that one wake may spend on refusals of its nodes.")
    ] = 3
    placement: Annotated[
        Literal["direct"], Meta(description="How a node is chosen; `direct`: one of those that were added, by room.")
    ] = "direct"
    inventory_seconds: Annotated[
        float, Meta(gt=0, description="Seconds between two inventories of each node, and two sweeps of time-outs.")
    ] = 15.0
    collect_grace_seconds: Annotated[
        float,
        Meta(ge=0, description="Seconds between marking an unneeded object in the store and deleting it."),
    ] = 3600.0


class ObjectsSection(Section, frozen=True):
    """``[objects]``: where artifacts are uploaded to, so that any node can restore them."""

    url: Annotated[
        str | None,
        Meta(
            description="`file:///DIR`, `s3://BUCKET/PREFIX?endpoint=URL&region=NAME` with keys from the usual `AWS_…` "
            "variables, or `none` to keep artifacts on their node only; unset: "
            "`objects` in the state directory."
        ),
    ] = None


_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
DomainName = Annotated[str, Meta(pattern=rf"^(?:{_LABEL}\.)*{_LABEL}$")]


class ApiSection(Section, frozen=True):
    """``[api]``: how often each caller may ask, else 429. The administrator's token and the socket are not bounded."""

    requests_per_second: Annotated[
        float, Meta(ge=0, description="Requests of one key, a second, over time; 0: no bound.")
    ] = 200.0
    burst: Annotated[int, Meta(ge=1, description="Requests of one key at once, after a pause.")] = 1000
    sandbox_requests_per_second: Annotated[
        float,
        Meta(ge=0, description="Requests of E2B clients to one sandbox, a second, over time; 0: no bound."),
    ] = 1000.0
    sandbox_burst: Annotated[
        int, Meta(ge=1, description="Requests of E2B clients to one sandbox at once, after a pause.")
    ] = 4000


class E2bSection(Section, frozen=True):
    """``[e2b]``: names for the clients that are E2B's SDKs."""

    domain: Annotated[
        DomainName | None,
        Meta(
            description="Domain under which a proxy sends `api.DOMAIN` and `PORT-ID.DOMAIN` on to the daemon; clients "
            "are told it. Unset: clients name the sandbox in a header."
        ),
    ] = None


class Config(Section, frozen=True):
    """The keys outside any section, and the sections."""

    state_dir: Annotated[
        str,
        Meta(description="Where everything is kept; absolute, or beginning with `~/`. Belongs to one user, mode 0700."),
    ] = "~/.local/state/flux"
    listen: Annotated[str, Meta(pattern=r"^.+:[0-9]{1,5}$", description="Address of the daemon, `HOST:PORT`.")] = (
        "127.0.0.1:7788"
    )
    lock_wait_seconds: Annotated[
        float,
        Meta(ge=0, description="Seconds to wait for another command on the same state directory or workspace."),
    ] = 10.0
    sandbox: SandboxSection = SandboxSection()
    speculation: SpeculationSection = SpeculationSection()
    node: NodeSection = NodeSection()
    control: ControlSection = ControlSection()
    objects: ObjectsSection = ObjectsSection()
    api: ApiSection = ApiSection()
    e2b: E2bSection = E2bSection()

    @property
    def objects_url(self) -> str | None:
        """Where artifacts are uploaded to; ``None`` if nowhere."""
        if self.objects.url is None:
            from urllib.parse import quote

            return "file://" + quote(os.path.join(self.state_dir, "objects"), errors="surrogateescape")
        return None if self.objects.url == "none" else self.objects.url


def load(
    *, state_directory: str | None = None, file: str | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """Read the configuration; the result's ``state_dir`` is absolute.

    Args:
        state_directory: the flag ``--state-dir``; relative to the working directory.
        file: the flag ``--config``.
        environment: where overrides and ``HOME`` are read from.

    Raises:
        FluxError: ``invalid`` for a file, key or value that cannot be used; the message names its place.
    """
    overrides = _overrides(environment)
    chosen = state_directory or overrides.get("state_dir")
    place = os.path.abspath(_expand(chosen, environment)) if chosen else default_state_directory(environment)
    source = file or environment.get("FLUX_CONFIG") or None
    found = source if source is not None else _first_present(os.path.join(place, FILE_NAME), SYSTEM_FILE)
    table = {} if found is None else _read(found)
    if not chosen and "state_dir" in table:
        place = _from_file(table["state_dir"], str(found), environment)
    _merge(table, overrides)
    result: Config = _convert({**table, "state_dir": place}, Config, f"the configuration file {printable(str(found))}")
    return result


def default_state_directory(environment: Mapping[str, str]) -> str:
    """Return ``$XDG_STATE_HOME/flux``, else ``~/.local/state/flux``; home is ``HOME`` or the user database's entry.

    Raises:
        FluxError: ``invalid`` if there is neither.
    """
    base = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(base):
        return os.path.join(base, "flux")
    return os.path.join(_home(environment), ".local/state/flux")


def _home(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd

    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if not os.path.isabs(home):
        raise FluxError(
            Code.INVALID,
            "cannot choose a state directory: HOME is not set and this user has no home directory; "
            "name one with --state-dir DIR or FLUX_STATE_DIR",
        )
    return home


def _expand(path: str, environment: Mapping[str, str]) -> str:
    return os.path.join(_home(environment), path[2:]) if path.startswith("~/") else path


def _first_present(*candidates: str) -> str | None:
    return next((path for path in candidates if os.path.lexists(path)), None)


def _read(path: str) -> dict[str, Any]:
    import tomllib

    shown = printable(path)
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - pathlib is slow to import
            table = tomllib.load(stream)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FluxError(Code.INVALID, f"cannot read the configuration file {shown}: {reason}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FluxError(Code.INVALID, f"cannot read the configuration file {shown}: not valid TOML: {error}") from error
    _refuse_unknown(table, Config, "", f"the configuration file {shown}")
    return table


def _refuse_unknown(table: Mapping[str, Any], section: type[Section], prefix: str, source: str) -> None:
    known = hints(section)
    for key, value in table.items():
        name = prefix + key
        if key not in known:
            nearest = _nearest(name, [prefix + other for other in known] + list(leaves()))
            raise FluxError(
                Code.INVALID,
                f"cannot use {source}: unknown key {printable(name)}; the nearest known key is {nearest}",
                {"key": name, "nearest": nearest},
            )
        if is_section(known[key]):
            if not isinstance(value, dict):
                raise FluxError(Code.INVALID, f"cannot use {source}: {name} is a section; write [{name}]")
            _refuse_unknown(value, known[key], name + ".", source)


def is_section(hint: object) -> bool:
    """Tell whether a key's type is a section."""
    return isinstance(hint, type) and issubclass(hint, Section)


def hints(section: type[Section]) -> dict[str, Any]:
    """Return the keys of a section with their annotated types."""
    return get_type_hints(section, include_extras=True)


def leaves(section: type[Section] = Config, prefix: str = "") -> dict[str, Any]:
    """Return every key that holds a value, as ``section.key`` → annotated type."""
    result: dict[str, Any] = {}
    for key, hint in hints(section).items():
        if is_section(hint):
            result.update(leaves(hint, f"{prefix}{key}."))
        else:
            result[prefix + key] = hint
    return result


def variable(key: str) -> str:
    """Return the environment variable that overrides ``section.key``."""
    return PREFIX + key.replace(".", SEPARATOR).upper()


def _nearest(name: str, known: list[str], cutoff: float = 0.0) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def _overrides(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that the environment sets, by ``section.key``; empty values count as not set."""
    given = [name for name in environment if name.startswith(PREFIX) and name not in OTHER_VARIABLES]
    if not given:
        return {}
    known = {variable(key): (key, hint) for key, hint in leaves().items()}
    result: dict[str, Any] = {}
    for name in given:
        if name in known and environment[name]:
            key, hint = known[name]
            result[key] = _convert(_split(environment[name], hint), hint, f"the environment variable {name}")
        elif name not in known:
            _refuse_variable(name, list(known))
    return result


def _refuse_variable(name: str, known: list[str]) -> None:
    """Refuse a variable that names a section or is nearly one of ours; others just share the prefix."""
    near = _nearest(name, [*known, *OTHER_VARIABLES], 0.0 if SEPARATOR in name else _NEAR)
    if near is not None:
        raise FluxError(
            Code.INVALID,
            f"cannot use the environment variable {printable(name)}: there is no such key; the nearest is {near}",
            {"key": name, "nearest": near},
        )


def _split(text: str, hint: Any) -> Any:
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return [part.strip() for part in text.split(",")] if get_origin(plain) is tuple else text


def _convert(value: Any, hint: Any, source: str) -> Any:
    # Values of the environment are text, which non-strict conversion reads as numbers; those of a file have types.
    try:
        return msgspec.convert(value, hint, strict=isinstance(value, dict))
    except msgspec.ValidationError as error:
        reason = str(error).replace("`$.", "`").replace("`", "")
        raise FluxError(Code.INVALID, f"cannot use {source}: {reason[:1].lower()}{reason[1:]}") from error


def _merge(table: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for name, value in overrides.items():
        *sections, key = name.split(".")
        target = table
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value


def _from_file(value: Any, file: str, environment: Mapping[str, str]) -> str:
    path = _expand(value, environment) if isinstance(value, str) else ""
    if not os.path.isabs(path):
        raise FluxError(
            Code.INVALID,
            f"cannot use the configuration file {printable(file)}: state_dir must be an absolute path or begin with ~/",
        )
    return os.path.normpath(path)
