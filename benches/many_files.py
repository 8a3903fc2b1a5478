"""Ten thousand new files: speculated, applied durably, reverted; each against the bare work."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches import measure
from benches.service import Daemon, daemon

FILES = 10_000
ROUNDS = 4
# Into a directory that is there already, so that each file is a step of its own.
CREATE = f"cd out && i=0 && while [ $i -lt {FILES} ]; do printf 0123456789abcdef > f$i; i=$((i+1)); done"


def by_hand(place: Path) -> None:
    """Write all files to temporaries, sync, rename each into place, sync: durable, but without any way back."""
    for number in range(FILES):
        descriptor = os.open(place / f".t{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(descriptor, b"0123456789abcdef")
        os.close(descriptor)
    measure.sync_filesystem(place)
    for number in range(FILES):
        os.rename(place / f".t{number}", place / f"f{number}")
    measure.sync_filesystem(place)


def _bare(place: Path) -> None:
    measure.bare(CREATE, place)
    measure.sync_filesystem(place)


def _fresh(place: Path, name: str) -> Path:
    target = place / name
    (target / "out").mkdir(parents=True)
    (target / "out" / "keep").write_bytes(b"")
    measure.sync_filesystem(place)
    return target


def _revert(flux: Daemon, sandbox: str, changeset: str) -> dict[str, float]:
    made: list[dict[str, Any]] = []
    times = {"inverse": measure.timed(lambda: made.append(flux.decide(sandbox, changeset, "revert")))}
    inverse = made[0]["id"]
    times["inverse"] += measure.timed(lambda: flux.decide(sandbox, inverse, "approve"))
    times["back"] = measure.timed(lambda: flux.decide(sandbox, inverse, "apply"))
    return times


def _one_round(flux: Daemon, place: Path, number: int) -> dict[str, float]:
    sandbox = flux.sandbox(_fresh(place, f"tree{number}"))
    other = _fresh(place, f"bare{number}")
    hand = _fresh(place, f"hand{number}") / "out"
    made: list[dict[str, Any]] = []
    actions: dict[str, Callable[[], object]] = {
        "speculate": lambda: made.append(flux.speculate(sandbox, CREATE)),
        "bare": lambda: _bare(other),
    }
    times = _in_order(actions, number)
    changeset = made[0]["id"]
    if len(made[0]["changes"]["added"]) != FILES:
        raise RuntimeError(f"the changeset holds {len(made[0]['changes']['added'])} added entries, not {FILES}")
    flux.decide(sandbox, changeset, "approve")
    times |= _in_order(
        {"apply": lambda: flux.decide(sandbox, changeset, "apply"), "hand": lambda: by_hand(hand)}, number
    )
    return times | _revert(flux, sandbox, changeset)


def _in_order(actions: dict[str, Callable[[], object]], number: int) -> dict[str, float]:
    """Time each action, the first one last in every other round: what comes first pays for a cold disk."""
    names = list(actions) if number % 2 == 0 else list(reversed(actions))
    return {name: measure.timed(actions[name]) for name in names}


def run() -> list[measure.Row]:
    """Return the four rows."""
    with measure.folder() as place, daemon(place) as flux:
        _one_round(flux, place, ROUNDS)  # what the disk does only once
        rounds = [_one_round(flux, place, number) for number in range(ROUNDS)]
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    rows = [
        ("speculate creating 10 000 files; against the command and a sync", "speculate", "bare", 2),
        ("apply 10 000 files; against temporaries, syncs, renames by hand", "apply", "hand", 1.5),
        ("revert them: apply the inverse; against apply", "back", "apply", 1),
        ("making and approving that inverse; against apply", "inverse", "apply", 1),
    ]
    return [
        measure.Row(name, median[ours], median[reference], "ms", "ratio", limit)
        for name, ours, reference, limit in rows
    ]
