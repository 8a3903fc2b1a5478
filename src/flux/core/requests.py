"""What callers ask of the engine. Unknown fields are refused where requests arrive (``forbid_unknown_fields``)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from flux.core.changeset import ConflictScope

CopyEngine = Literal["auto", "snapshot", "overlay", "reflink", "copy"]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request whose unknown fields are errors."""


class MountRequest(Request):
    """A read-only directory to add: host ``source`` at ``target`` inside."""

    source: str
    target: str


class CreateSandbox(Request):
    """Create a sandbox. ``workspace`` absent: a managed one over ``template``. Sizes in MiB, times in seconds.

    ``owner``: the id or name of the key that the sandbox is for; an administrator gives agents their sandboxes so.
    ``snapshot``: the id or name of a snapshot to start from, in place of a template. ``internet``: it may reach any
    public address, over TCP and UDP. ``auto_resume``: when it is paused, use of its data plane wakes it.
    ``public_ports``: where the daemon has a domain, whoever knows a managed sandbox's name reaches its ports; else they
    take a token.
    """

    kind: str | None = None
    workspace: str | None = None
    template: str | None = None
    name: str | None = None
    net_ports: list[int] = []
    mounts: list[MountRequest] = []
    environment: dict[str, str] = {}
    memory_mib: int | None = None
    cpus: float | None = None
    pids: int | None = None
    ttl_seconds: int | None = None
    on_timeout: Literal["kill", "pause"] = "kill"
    metadata: dict[str, str] = {}
    owner: str | None = None
    snapshot: str | None = None
    internet: bool = False
    auto_resume: bool = False
    public_ports: bool = True


class Pause(Request):
    """Pause a sandbox. ``durable``: answer only when the object store has everything, not just this node."""

    durable: bool = False


class Resume(Request):
    """Resume a sandbox. ``timeout_seconds``: it lives at least so long from now; what is left is never shortened."""

    timeout_seconds: int | None = None


class TakeSnapshot(Request):
    """Save a sandbox as it is to an artifact of its own, under a ``name`` if one is given, and let it run on."""

    name: str | None = None


class Fork(Request):
    """Make ``count`` sandboxes of one as it is. ``name``: of the copy; several have ``-1``, ``-2`` … after it.

    ``ttl_seconds``: their time-out, if it is another than that of the source.
    """

    count: Annotated[int, Meta(ge=1, le=100)] = 1
    name: str | None = None
    ttl_seconds: int | None = None


class AddNode(Request):
    """Register a node. ``address``: ``HOST:PORT`` of its manager; ``token``: what its file ``node.token`` holds.

    ``authority``: PEM of the certificate authority that signed the node's certificate; without it there is no TLS.
    """

    name: str
    address: str
    token: str
    authority: str | None = None


class Exec(Request):
    """Run a command in the real sandbox: exactly one of ``command`` (a shell string) and ``argv``."""

    command: str | None = None
    argv: list[str] | None = None
    environment: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    timeout_seconds: float | None = None
    stdin: str | None = None
    stdin_base64: str | None = None
    stream: bool = False


class StartProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Start a program in the real sandbox that runs until it ends or is killed.

    ``user``: a name of the sandbox's ``/etc/passwd``, or a uid. ``cwd``: absolute, or from the user's home, ``~`` too;
    ``None`` is the home.
    """

    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    cwd: str | None = None
    user: str = "user"


class Speculate(Request):
    """Run a command in a throwaway copy and stage what it changed (spec: speculation)."""

    command: str | None = None
    argv: list[str] | None = None
    paths: list[str] | None = None
    environment: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    timeout_seconds: float | None = None
    ttl_seconds: int | None = None
    network: Literal["sandbox", "none"] = "sandbox"
    copy_engine: CopyEngine = "auto"
    conflict_scope: ConflictScope | None = None
    parent: str | None = None


class DryRun(Request):
    """Run a command in a throwaway copy, report the changes, keep nothing."""

    command: str | None = None
    argv: list[str] | None = None
    paths: list[str] | None = None
    environment: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    timeout_seconds: float | None = None
    network: Literal["sandbox", "none"] = "sandbox"
    copy_engine: CopyEngine = "auto"


class Approve(Request):
    """Approve a changeset. ``digest``: what was reviewed; ``only``: the part to keep; ``conflict_scope`` narrows."""

    digest: str | None = None
    only: list[str] | None = None
    comment: str | None = None
    conflict_scope: ConflictScope | None = None


class Decide(Request):
    """Reject, apply, revert or rerun a changeset, with a comment for the record."""

    comment: str | None = None


class CreateKey(Request):
    """Issue an API key for a role (spec: access)."""

    name: str
    role: Literal["admin", "reviewer", "agent", "user"] = "user"
