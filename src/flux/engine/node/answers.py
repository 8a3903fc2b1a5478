"""Failures of calls about an execution: definite ones are signed with the node's details, others are unknown (§5)."""

from __future__ import annotations

from typing import Any

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.fence import Fence
from flux.core.paths import printable
from flux.core.route import Execution, Route
from flux.engine.node.node import Node
from flux.store import fences

#: §5: what a failure travels as; everything else is INTERNAL.
_STATUS = {
    Code.EXHAUSTED: (Code.EXHAUSTED, "RESOURCE_EXHAUSTED"),
    Code.NOT_FOUND: (Code.NOT_FOUND, "NOT_FOUND"),
    Code.INVALID: (Code.INVALID, "INVALID_ARGUMENT"),
}
_OWN_REASONS = {"DataLoss": "DATA_LOSS", "ArtifactMissing": "NOT_FOUND"}


def failed(
    node: Node, error: Exception, sandbox_id: str, action: str, about: Route | Execution, reason: str
) -> FluxError:
    """Return the error of a call that failed and was undone, with the details that make it definite.

    ``reason`` is the stage at which it failed, unless the error names a better one (data loss, a missing artifact).
    """
    with node.reading() as tx:
        fence = fences.find(tx, sandbox_id)
    code, status = _STATUS.get(error.code, (Code.INTERNAL, "INTERNAL")) if isinstance(error, FluxError) else _INTERNAL
    named = error.details.get("reason") if isinstance(error, FluxError) else None
    if named in _OWN_REASONS:
        reason, status = str(named), _OWN_REASONS[str(named)]
    message = f"cannot {action} sandbox {sandbox_id}: {_text(error)}; everything is as it was before"
    details = about_failure(node, fence, about) | {"reason": reason, "grpc_status": status, "rolled_back": True}
    return FluxError(
        code, message, details | {"cause": error.code.value if isinstance(error, FluxError) else "internal"}
    )


def about_failure(node: Node, fence: Fence, about: Route | Execution) -> dict[str, Any]:
    """Return the details that sign a failure: which store, which generation, what it knows (§5)."""
    found: dict[str, Any] = {
        "node_store_id": node.store_id,
        "generation": about.generation,
        "floor": fence.floor,
        "ended": [msgspec.to_builtins(ended) for ended in fence.ended],
    }
    if isinstance(about, Route):
        found["attempt_id"] = about.attempt_id
    return found


def unknown(error: Exception, sandbox_id: str, action: str) -> FluxError:
    """Return the error of a call that failed and could not be undone yet: nobody knows how it will end (I9)."""
    return FluxError(
        Code.UNKNOWN_OUTCOME,
        f"cannot {action} sandbox {sandbox_id}: {_text(error)}; it is being put right: ask the same again",
    )


def _text(error: Exception) -> str:
    if isinstance(error, FluxError):
        return error.message
    return printable(f"{type(error).__name__}: {error}")[:200]


_INTERNAL = (Code.INTERNAL, "INTERNAL")
