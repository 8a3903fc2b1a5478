"""Which generation of a sandbox the present call was meant for: it is refused for any other (spec: generations, §6).

Set by whoever resolved the call, for the call's own thread; nothing set means that the caller names no generation.
"""

from __future__ import annotations

from contextvars import ContextVar

from flux.core.errors import Code, FluxError
from flux.core.fence import Reason
from flux.core.sandbox import Sandbox

_generation: ContextVar[int | None] = ContextVar("expected_generation", default=None)


def expect(generation: int | None) -> None:
    """Let the rest of this call concern only ``generation``; ``None``: whichever there is."""
    _generation.set(generation)


def check(sandbox: Sandbox) -> None:
    """Refuse a sandbox of another generation than the call was meant for.

    Raises:
        FluxError: ``fenced``.
    """
    expected = _generation.get()
    if expected is not None and expected != sandbox.generation:
        raise FluxError(
            Code.FENCED,
            f"cannot use generation {expected} of the sandbox {sandbox.id}: it is generation {sandbox.generation} now; "
            "ask the control plane again",
            {"reason": Reason.STALE_GENERATION.value, "generation": expected},
        )
