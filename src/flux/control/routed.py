"""A node's data plane: what a control plane forwards, for the execution that a request names (spec: generations, §6).

A sandbox is named ``<id>.<generation>`` here. An older generation is fenced, so that a request which was forwarded
before the sandbox moved on is not done to its successor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flux.control.dataplane import DataPlane, Execution
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

if TYPE_CHECKING:
    from flux.core.access import Actor
    from flux.engine.engine import Engine

_GENERATION_DIGITS_MAX = 18


class Credentials(Protocol):
    """Knows which execution a credential belongs to."""

    def check_credential(self, sandbox_id: str, generation: int, credential: str) -> None:
        """Let the holder pass.

        Raises:
            FluxError: ``fenced`` for another generation than the one that runs, ``denied`` for a wrong credential.
        """
        ...


class RoutedPlane(DataPlane):
    """The data plane of a node that is a process of its own.

    Args:
        engine: does the work.
        credentials: the node's manager.
    """

    def __init__(self, engine: Engine, credentials: Credentials) -> None:
        super().__init__(engine, Named())
        self._credentials = credentials

    def check_credential(self, sandbox_id: str, generation: int, credential: str) -> None:
        """Let a request pass that carries the credential of the execution which runs. Raises ``fenced``, ``denied``."""
        self._credentials.check_credential(sandbox_id, generation, credential)


class Named:
    """Takes executions as they are named."""

    def running(self, actor: Actor, sandbox: str) -> Execution:
        """Return the execution."""
        sandbox_id, _, generation = sandbox.partition(".")
        if not (generation.isascii() and generation.isdigit() and len(generation) <= _GENERATION_DIGITS_MAX):
            raise FluxError(
                Code.NOT_FOUND, f"cannot find the execution {printable(sandbox)[:80]!r}: write SANDBOX.GENERATION"
            )
        return Execution(sandbox_id=sandbox_id, generation=int(generation))

    def known(self, actor: Actor, sandbox: str) -> str:
        """Return the sandbox's id."""
        return self.running(actor, sandbox).sandbox_id
