"""Who works on what in a node's process, asked through the tape."""

from __future__ import annotations

from flux.engine.node.desk import Desk, Work
from flux.testing.explorer.tape import Tape


class ModelDesk(Desk):
    """``Desk`` of a process in the world. Nobody waits at it: the world knows who can go on."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def take(self, sandbox_id: str, work: Work) -> int:
        """Begin work on a sandbox."""
        held = super().take
        return self._tape.call(lambda: held(sandbox_id, work))

    def drop(self, number: int) -> None:
        """End work."""
        held = super().drop
        self._tape.call(lambda: held(number))

    def is_held(self, sandbox_id: str) -> bool:
        """Tell whether anybody works on a sandbox."""
        held = super().is_held
        return self._tape.call(lambda: held(sandbox_id))

    def is_swept(self, sandbox_id: str) -> bool:
        """Tell whether leftovers of a sandbox are being removed."""
        held = super().is_swept
        return self._tape.call(lambda: held(sandbox_id))

    def is_alone(self, number: int, sandbox_id: str) -> bool:
        """Tell whether nobody else works on a sandbox."""
        held = super().is_alone
        return self._tape.call(lambda: held(number, sandbox_id))

    def begin_use(self) -> bool:
        """Ask to use artifacts."""
        return self._tape.call(super().begin_use)

    def end_use(self) -> None:
        """Give up a use."""
        self._tape.call(super().end_use)

    def begin_collecting(self) -> bool:
        """Ask to have the artifacts alone."""
        return self._tape.call(super().begin_collecting)

    def end_collecting(self) -> None:
        """Give up the artifacts."""
        self._tape.call(super().end_collecting)

    def text(self) -> str:
        """Return what makes a difference later: not how works are numbered."""
        state = self.state
        return repr((sorted((held.sandbox_id, held.work.value) for held in state.held), state.uses, state.collecting))
