"""Whether a credential is that of the execution which runs now: what opens a node's data plane (§6)."""

from __future__ import annotations

from flux.core.errors import Code, FluxError
from flux.core.fence import Reason, Refusal
from flux.core.route import Execution
from flux.engine.node.node import Node, digest_of
from flux.store import fences, sandboxes


def check(node: Node, sandbox_id: str, generation: int, credential: str) -> None:
    """Let the holder of a credential use an execution.

    Raises:
        FluxError: ``fenced`` for another generation than the one that holds the sandbox, ``not_found`` where there is
            no such sandbox, ``denied`` for a wrong credential, or that of an execution which does not run any more.
    """
    with node.reading() as tx:
        found = sandboxes.by_credential(tx, sandbox_id, digest_of(credential))
        row, fence = sandboxes.row(tx, sandbox_id), fences.find(tx, sandbox_id)
    if found is not None and found.generation == generation:
        return
    about = Execution(generation=generation, pod_uid="")
    if row is None:
        refusal = Refusal(reason=Reason.UNKNOWN_SANDBOX, message="there is no such sandbox on this node")
        raise node.refusal(refusal, sandbox_id, "use", about, fence)
    if row.generation != generation:
        refusal = Refusal(
            reason=Reason.STALE_GENERATION,
            message=f"generation {generation} does not hold it here; that is generation {row.generation}",
        )
        raise node.refusal(refusal, sandbox_id, "use", about, fence)
    raise FluxError(
        Code.DENIED, f"cannot use the sandbox {sandbox_id}: the credential is not of an execution that runs here"
    )
