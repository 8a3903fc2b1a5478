"""The tokens of a state directory: the administrator's, and the one that a node's control plane needs."""

from __future__ import annotations

import os

from flux.app import secrets

TOKEN_NAME = "admin-token"
NODE_TOKEN_NAME = "node.token"


def ensure_admin_token(state_directory: str) -> str:
    """Return the administrator's token, making it (0600) if there is none. The caller holds the directory's lock.

    Raises:
        FluxError: ``denied`` if the file cannot be read, or others may read it.
    """
    return secrets.ensure(os.path.join(state_directory, TOKEN_NAME), "the token", "flux_admin_")


def read_admin_token(state_directory: str) -> str | None:
    """Return the administrator's token, or nothing if there is none.

    Raises:
        FluxError: ``denied`` if the file cannot be read, or others may read it.
    """
    found = secrets.read(os.path.join(state_directory, TOKEN_NAME), "the token")
    return (found or b"").decode("ascii", "replace").strip() or None


def ensure_node_token(state_directory: str) -> str:
    """Return the token that every call to this node's manager must carry, making it (0600) if there is none."""
    return secrets.ensure(os.path.join(state_directory, NODE_TOKEN_NAME), "the node's token", "flux_node_")
