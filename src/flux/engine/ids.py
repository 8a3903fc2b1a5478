"""Ids: ``^[a-z0-9]+$``, told apart by their first two letters."""

from __future__ import annotations

import os
import re

_RANDOM_BYTES = 8
_IDENTITY_BYTES = 16
_SECRET_BYTES = 32


def sandbox() -> str:
    """Return a new sandbox id."""
    return "sb" + os.urandom(_RANDOM_BYTES).hex()


def attempt() -> str:
    """Return a new id for one attempt at starting a sandbox, or for what holds its execution."""
    return "at" + os.urandom(_RANDOM_BYTES).hex()


def is_sandbox(text: str) -> bool:
    """Tell whether a text is a sandbox id, of one that is there or not."""
    return re.fullmatch(r"sb[0-9a-f]{16}", text) is not None


def changeset() -> str:
    """Return a new changeset id."""
    return "cs" + os.urandom(_RANDOM_BYTES).hex()


def run() -> str:
    """Return a new id for a throwaway run."""
    return "rn" + os.urandom(_RANDOM_BYTES).hex()


def key() -> str:
    """Return a new key id."""
    return "ky" + os.urandom(_RANDOM_BYTES).hex()


def identity() -> str:
    """Return a new id for an attempt, a pod, a process: 128 random bits."""
    return os.urandom(_IDENTITY_BYTES).hex()


def event() -> str:
    """Return a new audit line id."""
    return "ev" + os.urandom(_RANDOM_BYTES).hex()


def secret() -> str:
    """Return a new key's secret: 256 random bits."""
    return "flux_" + os.urandom(_SECRET_BYTES).hex()
