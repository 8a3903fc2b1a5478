"""What a speculation costs when there is nothing to do: `true` on 100 files."""

from __future__ import annotations

import subprocess
import sys

from benches import measure
from benches.service import daemon, fluxctl

FILES = 100
ROUNDS = 15


def through_a_daemon() -> list[measure.Row]:
    """Compare with a bare shell that does nothing."""
    with measure.folder() as place, daemon(place) as flux:
        sandbox = flux.sandbox(measure.make_tree(place / "tree", FILES))
        flux.speculate(sandbox, "true")
        ours, bare = measure.in_turn(
            ROUNDS, lambda: flux.speculate(sandbox, "true"), lambda: measure.bare("true", place)
        )
    return [measure.Row("speculate `true`, 100 files, daemon; against sh -c true", ours, bare, "ms", "more", 30)]


def whole_process() -> list[measure.Row]:
    """Compare ``fluxctl`` from its start to its end with an interpreter that does nothing."""
    with measure.folder() as place:
        tree = measure.make_tree(place / "tree", FILES)
        state = place / "state"
        sandbox = fluxctl(state, "sandbox", "create", "--workspace", str(tree))["id"]
        ours, bare = measure.in_turn(
            ROUNDS,
            lambda: fluxctl(state, "sandbox", "speculate", sandbox, "--", "true"),
            lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        )
    return [measure.Row("fluxctl sandbox speculate, 100 files; against python -c pass", ours, bare, "ms", "more", 180)]


def run() -> list[measure.Row]:
    """Return both rows."""
    return through_a_daemon() + whole_process()
