"""The one row that says which node's store this is, and which manager may write to it (§2)."""

from __future__ import annotations

import msgspec

from flux.core.errors import Code, FluxError
from flux.store.database import Transaction


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A node's identity. ``secret``: what its credentials are derived from."""

    node_store_id: str
    secret: bytes


def find(tx: Transaction) -> Identity | None:
    """Return the store's identity, ``None`` for a new store."""
    found = tx.one("SELECT node_store_id, secret FROM node_identity")
    return None if found is None else Identity(node_store_id=found[0], secret=found[1])


def adopt(tx: Transaction, owner: str, fresh: Identity) -> Identity:
    """Make ``owner`` the one manager that may write; return the identity, which is ``fresh`` for a new store only."""
    tx.execute(
        "INSERT INTO node_identity (one, node_store_id, secret, owner) VALUES (1, ?1, ?2, ?3)"
        " ON CONFLICT (one) DO UPDATE SET owner = ?3",
        (fresh.node_store_id, fresh.secret, owner),
    )
    return find(tx) or fresh


def check(tx: Transaction, owner: str) -> None:
    """Refuse a manager after which another one has opened the store.

    Raises:
        FluxError: ``fenced``.
    """
    if tx.one("SELECT 1 FROM node_identity WHERE owner = ?", (owner,)) is None:
        raise FluxError(
            Code.FENCED,
            "cannot write to the node's store: another manager has opened it since; stop one of the two",
            {"reason": "OtherManager"},
        )
