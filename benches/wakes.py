"""Two hundred suspended sandboxes woken eight at a time, beside one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benches import measure
from benches.platform import Wakes, wakes

SANDBOXES = 200
AT_ONCE = 8
ROUNDS = 3
LIMIT = 0.8


def wake_all(one: Wakes, sandboxes: list[str], at_once: int) -> float:
    """Wake all sandboxes, so many at a time, and return how long it took in milliseconds; then pause them again."""
    with ThreadPoolExecutor(at_once) as pool:
        taken = measure.timed(lambda: list(pool.map(one.connect, sandboxes)))
        list(pool.map(one.pause, sandboxes))
    return taken


def run() -> list[measure.Row]:
    """Return the ratio of the two."""
    with measure.folder() as place, wakes(place) as one:
        sandboxes = [one.create() for _ in range(SANDBOXES)]
        for sandbox in sandboxes:
            one.pause(sandbox)
        taken = [(wake_all(one, sandboxes, AT_ONCE), wake_all(one, sandboxes, 1)) for _ in range(ROUNDS)]
    together = sorted(first for first, _ in taken)[ROUNDS // 2]
    in_turn = sorted(second for _, second in taken)[ROUNDS // 2]
    return [measure.Row(f"{SANDBOXES} wakes, {AT_ONCE} at a time / in turn", together, in_turn, "ms", "ratio", LIMIT)]
