"""Ids: ``^[a-z0-9]+$``, told apart by their first two letters."""

from __future__ import annotations

import secrets

_RANDOM_BYTES = 8


def sandbox() -> str:
    """Return a new sandbox id."""
    return "sb" + secrets.token_hex(_RANDOM_BYTES)


def changeset() -> str:
    """Return a new changeset id."""
    return "cs" + secrets.token_hex(_RANDOM_BYTES)


def run() -> str:
    """Return a new id for a throwaway run."""
    return "rn" + secrets.token_hex(_RANDOM_BYTES)


def key() -> str:
    """Return a new key id."""
    return "ky" + secrets.token_hex(_RANDOM_BYTES)


def event() -> str:
    """Return a new audit line id."""
    return "ev" + secrets.token_hex(_RANDOM_BYTES)


def secret() -> str:
    """Return a new key's secret: 256 random bits."""
    return "flux_" + secrets.token_hex(32)
