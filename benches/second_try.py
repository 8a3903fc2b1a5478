"""A wake whose first prepare fails, and which succeeds through the next generation, beside a normal wake."""

from __future__ import annotations

import threading

from benches import measure
from benches.fleet import Fleet, fleet
from flux.core.sandbox import Sandbox
from flux.testing.executions import FakeExecutions

ROUNDS = 21
LIMIT = 1.5
#: What starting an execution takes, of any kind that there is: the failure comes before it.
START_SECONDS = 0.1


class SlowExecutions(FakeExecutions):
    """Executions whose start takes as long as a real one."""

    def start(self, sandbox: Sandbox, generation: int) -> None:
        """Start the prepared execution."""
        threading.Event().wait(START_SECONDS)
        super().start(sandbox, generation)


def failing(one: Fleet, sandbox: str) -> None:
    """Wake a sandbox whose first prepare fails."""
    one.machine.fail("prepare")
    one.connect(sandbox)


def run() -> list[measure.Row]:
    """Return the ratio of the two."""
    with measure.folder() as place, fleet(place / "fleet") as one:
        one.manager.node.executions = SlowExecutions(one.machine)
        sandbox = one.create()
        normal, twice = [], []
        for _ in range(ROUNDS):
            one.pause(sandbox)
            normal.append(measure.timed(lambda: one.connect(sandbox)))
            one.pause(sandbox)
            twice.append(measure.timed(lambda: failing(one, sandbox)))
    return [
        measure.Row(
            "a wake whose first prepare fails / a normal wake",
            sorted(twice)[ROUNDS // 2],
            sorted(normal)[ROUNDS // 2],
            "ms",
            "ratio",
            LIMIT,
        )
    ]
