"""A wake whose first prepare fails, and which succeeds through the next generation, beside a normal wake."""

from __future__ import annotations

from benches import measure
from benches.fleet import Fleet, SlowExecutions, fleet

ROUNDS = 21
LIMIT = 1.5
#: What starting an execution takes: the failure comes before it.
START_SECONDS = 0.1


def failing(one: Fleet, sandbox: str) -> None:
    """Wake a sandbox whose first prepare fails."""
    one.machine.fail("prepare")
    one.connect(sandbox)


def run() -> list[measure.Row]:
    """Return the ratio of the two."""
    with measure.folder() as place, fleet(place / "fleet") as one:
        one.manager.node.executions = SlowExecutions(one.machine, START_SECONDS)
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
