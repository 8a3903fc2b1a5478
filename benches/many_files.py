"""Ten thousand new files: speculated, applied durably, reverted; each against the bare work."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from benches import measure
from benches.service import Daemon, daemon

FILES = 10_000
ROUNDS = 3
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


def _whole_revert(flux: Daemon, sandbox: str, changeset: str) -> None:
    inverse = flux.decide(sandbox, changeset, "revert")["id"]
    flux.decide(sandbox, inverse, "approve")
    flux.decide(sandbox, inverse, "apply")


def _one_round(flux: Daemon, place: Path, number: int) -> dict[str, float]:
    sandbox = flux.sandbox(_fresh(place, f"tree{number}"))
    other = _fresh(place, f"bare{number}")
    hand = _fresh(place, f"hand{number}") / "out"
    made: list[dict[str, Any]] = []
    times = {"speculate": measure.timed(lambda: made.append(flux.speculate(sandbox, CREATE)))}
    changeset = made[0]["id"]
    if len(made[0]["changes"]["added"]) != FILES:
        raise RuntimeError(f"the changeset holds {len(made[0]['changes']['added'])} added entries, not {FILES}")
    times["bare"] = measure.timed(lambda: _bare(other))
    flux.decide(sandbox, changeset, "approve")
    times["apply"] = measure.timed(lambda: flux.decide(sandbox, changeset, "apply"))
    times["hand"] = measure.timed(lambda: by_hand(hand))
    times["revert"] = measure.timed(lambda: _whole_revert(flux, sandbox, changeset))
    return times


def run() -> list[measure.Row]:
    """Return the three rows."""
    with measure.folder() as place, daemon(place) as flux:
        rounds = [_one_round(flux, place, number) for number in range(ROUNDS)]
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    row = measure.Row
    return [
        row(
            "speculate creating 10 000 files; against the command and a sync",
            median["speculate"],
            median["bare"],
            "ms",
            "ratio",
            2,
        ),
        row(
            "apply 10 000 files; against temporaries, syncs, renames by hand",
            median["apply"],
            median["hand"],
            "ms",
            "ratio",
            1.5,
        ),
        row("revert them, approved and applied; against apply", median["revert"], median["apply"], "ms", "ratio", 1),
    ]
