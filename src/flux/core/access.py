"""Who may do what: one table from operation to roles, and who sees whose sandboxes (spec: access)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from flux.core.errors import Code, FluxError


class Role(StrEnum):
    """What a caller is allowed to do."""

    ADMIN = "admin"
    REVIEWER = "reviewer"
    AGENT = "agent"
    USER = "user"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls: ``name`` for the record, the ``role``, and the key's id if a key stands behind it.

    ``sandbox_id``: the one sandbox whose data-plane token the caller holds; it sees that one, whoever owns it.
    """

    name: str
    role: Role
    key_id: str | None = None
    sandbox_id: str | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. Times in wall-clock seconds since the epoch."""

    id: str
    name: str
    role: Role
    created_at: float
    revoked_at: float | None = None


#: Flux itself, as the actor of what happens without a caller (expiry, recovery).
SYSTEM = Actor(name="flux", role=Role.ADMIN)

_ADMIN = frozenset({Role.ADMIN})
_DECIDERS = _ADMIN | {Role.REVIEWER}
_OWNERS = _ADMIN | {Role.AGENT, Role.USER}
_SPECULATORS = _ADMIN | {Role.AGENT}
_READERS = _DECIDERS | {Role.AGENT}
_EVERYONE = frozenset(Role)

ROLES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        "sandbox.create": _OWNERS,
        "sandbox.list": _EVERYONE,
        "sandbox.get": _EVERYONE,
        "sandbox.metrics": _EVERYONE,
        "sandbox.delete": _OWNERS,
        "sandbox.pause": _OWNERS,
        "sandbox.resume": _OWNERS,
        "sandbox.snapshot": _OWNERS,
        "sandbox.fork": _OWNERS,
        "sandbox.exec": _OWNERS,
        "sandbox.baseline": _OWNERS,
        "sandbox.changes": _EVERYONE,
        "sandbox.dry-run": _OWNERS,
        "sandbox.speculate": _SPECULATORS,
        "files.read": _EVERYONE,
        "files.write": _OWNERS,
        "files.list": _EVERYONE,
        "changeset.list": _READERS,
        "changeset.get": _READERS,
        "changeset.diff": _READERS,
        "changeset.file": _READERS,
        "changeset.compare": _READERS,
        "changeset.export": _READERS,
        "changeset.wait": _READERS,
        "changeset.approve": _DECIDERS,
        "changeset.reject": _DECIDERS,
        "changeset.apply": _DECIDERS,
        "changeset.revert": _DECIDERS,
        "changeset.rerun": _DECIDERS,
        "artifact.list": _EVERYONE,
        "artifact.get": _EVERYONE,
        "artifact.delete": _OWNERS,
        "artifact.verify": _OWNERS,
        "artifact.collect": _ADMIN,
        "node.add": _ADMIN,
        "node.list": _ADMIN,
        "node.get": _ADMIN,
        "node.forget": _ADMIN,
        "audit.list": _DECIDERS,
        "keys.create": _ADMIN,
        "keys.list": _ADMIN,
        "keys.revoke": _ADMIN,
        "doctor": _ADMIN,
        "health": _EVERYONE,
    }
)


def permit(actor: Actor, operation: str) -> None:
    """Let the call pass if the actor's role may do ``operation``.

    Raises:
        FluxError: ``denied``, naming the roles that may.
    """
    roles = ROLES[operation]
    if actor.role not in roles:
        raise FluxError(
            Code.DENIED,
            f"cannot do {operation} with the role {actor.role}: it is for {', '.join(sorted(roles))}; "
            "use a key of such a role",
            {"operation": operation, "role": actor.role, "allowed": sorted(roles)},
        )


def permit_host_directories(actor: Actor) -> None:
    """Let a request that binds or mounts a directory of the host pass if the actor's role may do so.

    Flux often runs as root: whoever chooses the directory chooses what can be read and changed on the machine.

    Raises:
        FluxError: ``denied``.
    """
    if actor.role is not Role.ADMIN:
        raise FluxError(
            Code.DENIED,
            f"cannot give a sandbox a directory of the host with the role {actor.role}: that is for admin; leave it "
            "out, or have an administrator create the sandbox with you as its owner",
        )


def permit_direct_change(actor: Actor, *, bound: bool) -> None:
    """Let a command or a write in the real sandbox pass: in a user's own directory an agent only speculates.

    Raises:
        FluxError: ``denied``.
    """
    if bound and actor.role is Role.AGENT:
        raise FluxError(
            Code.DENIED,
            "cannot change a bound workspace directly with the role agent: speculate, and have the changeset reviewed",
        )


def may_hold_token(actor: Actor, *, bound: bool) -> bool:
    """Tell whether the actor may be told the token of a sandbox that it sees, whose holder runs and writes anything.

    Those who may do that themselves: not a reviewer, nor an agent in a user's own directory.
    """
    return actor.role in ROLES["sandbox.exec"] and not (bound and actor.role is Role.AGENT)


def permit_owner(actor: Actor) -> None:
    """Let a request that names another owner pass if it is an administrator's.

    Raises:
        FluxError: ``denied``.
    """
    if actor.role is not Role.ADMIN:
        raise FluxError(Code.DENIED, f"cannot choose a sandbox's owner with the role {actor.role}: leave owner out")


def sees_all(actor: Actor) -> bool:
    """Tell whether the actor sees every sandbox, or only those that its own key created."""
    return actor.role in _DECIDERS


def sees(actor: Actor, owner: str | None, sandbox_id: str | None = None) -> bool:
    """Tell whether the actor sees what belongs to ``owner`` (a key's id; ``None``: made without a key).

    ``sandbox_id``: the sandbox that it is, or is part of, if it is one's.
    """
    if actor.sandbox_id is not None:
        return actor.sandbox_id == sandbox_id
    return sees_all(actor) or (owner is not None and owner == actor.key_id)


def bearer_of(sandbox_id: str) -> Actor:
    """Return the actor that holds a sandbox's data-plane token: a user of that sandbox and of no other."""
    return Actor(name=f"token of {sandbox_id}", role=Role.USER, sandbox_id=sandbox_id)
