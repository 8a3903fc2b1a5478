"""A wake whose first prepare fails, and which succeeds through the next generation, beside a normal wake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benches import measure
from benches.platform import Wakes, wakes
from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed

ROUNDS = 21
LIMIT = 1.5


@contextmanager
def one_failing_prepare() -> Iterator[None]:
    """Let the next prepare fail, and only that one."""
    left = [1]

    def fail(point: Point) -> None:
        if point is Point.ACTIVATE_PREPARE and left[0]:
            left[0] -= 1
            raise FluxError(Code.EXHAUSTED, "cannot prepare: no space")

    with armed(fail):
        yield
    if left[0]:
        raise SystemExit("the prepare that was to fail was never reached")


def failing(one: Wakes, sandbox: str) -> None:
    """Wake a sandbox whose first prepare fails."""
    with one_failing_prepare():
        one.connect(sandbox)


def run() -> list[measure.Row]:
    """Return the ratio of the two."""
    with measure.folder() as place, wakes(place) as one:
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
