"""API keys: issued once, stored hashed, revocable (spec: access)."""

from __future__ import annotations

import hashlib

from flux.core.access import Actor, Key, Role
from flux.core.audit import AuditKind
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.requests import CreateKey
from flux.core.sandbox import checked_name
from flux.engine import ids
from flux.engine.context import Context
from flux.engine.results import NewKey
from flux.store import keys

_ADMIN = Actor(name="admin", role=Role.ADMIN)


def create(context: Context, actor: Actor, request: CreateKey) -> NewKey:
    """Issue a key."""
    secret = ids.secret()
    checked_name(request.name, "a key")
    key = Key(id=ids.key(), name=request.name, role=Role(request.role), created_at=context.clock.wall())
    with context.stores.database.transaction() as tx:
        keys.insert(tx, key, _hash(secret))
    _record(context, actor, AuditKind.KEY_CREATE, key)
    return NewKey(key=key, secret=secret)


def every(context: Context) -> list[Key]:
    """Return all keys."""
    with context.stores.database.reading() as tx:
        return keys.every(tx)


def revoke(context: Context, actor: Actor, reference: str) -> Key:
    """Revoke a key; revoking one again changes nothing."""
    with context.stores.database.transaction() as tx:
        key = keys.revoke(tx, reference)
    if key is None:
        raise FluxError(
            Code.NOT_FOUND, f"cannot find the key {printable(reference)[:80]!r}: there is none with that id or name"
        )
    _record(context, actor, AuditKind.KEY_REVOKE, key)
    return key


def authenticate(context: Context, token: str) -> Actor:
    """Return who a token belongs to."""
    digest = _hash(token)
    admin = context.settings.admin_token_sha256
    # Digests of secrets are compared: how long that takes tells nothing about a secret.
    if digest == admin:
        return _ADMIN
    with context.stores.database.reading() as tx:
        key = keys.in_force(tx, digest)
    if key is None:
        raise FluxError(
            Code.UNAUTHENTICATED, "cannot tell who you are: the token is not valid; ask for a key, or a new one"
        )
    return Actor(name=key.name, role=key.role, key_id=key.id)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _record(context: Context, actor: Actor, kind: AuditKind, key: Key) -> None:
    details = {"key": key.id, "name": key.name, "role": key.role.value}
    context.stores.audit.append(context.line(kind, actor, details=details))
