"""``python -m flux.testing.explorer``: explore scenarios, walk at random, or replay a schedule.

Usage:
    python -m flux.testing.explorer explore [SCENARIO …] [--faults N] [--switches N] [--seconds S]
    python -m flux.testing.explorer walk [SCENARIO …] [--seeds N] [--first N] [--faults N] [--seconds S]
    python -m flux.testing.explorer replay SCENARIO FILE
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from flux.testing.explorer import scenarios
from flux.testing.explorer.search import Budget, Exhaustive, Report, every_walk, replay

_NUMBERED = re.compile(r"^\s*\d+ ")


def main(arguments: list[str]) -> int:
    """Do what the arguments say; 1 if something is violated."""
    parser = argparse.ArgumentParser(prog="python -m flux.testing.explorer", description=__doc__)
    parser.add_argument("what", choices=("explore", "walk", "replay"))
    parser.add_argument("scenario", nargs="*")
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--switches", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parsed = parser.parse_args(arguments)
    if parsed.what == "replay":
        return _replayed(*parsed.scenario)
    names = parsed.scenario or [scenario.name for scenario in scenarios.SCENARIOS]
    return max(_searched(name, parsed) for name in names)


def _searched(name: str, parsed: argparse.Namespace) -> int:
    make = scenarios.named(name).make
    if parsed.what == "explore":
        budget = Budget(faults=parsed.faults, switches=parsed.switches, seconds=parsed.seconds)
        report: Report = Exhaustive(name, make, budget).run()
    else:
        seeds = range(parsed.first, parsed.first + parsed.seeds)
        report = every_walk(name, make, seeds=seeds, seconds=parsed.seconds, faults=parsed.faults)
    print(report if report.found is None else f"{report}\n{report.found}", flush=True)
    return int(report.found is not None)


def _replayed(name: str, file: str) -> int:
    schedule = [_NUMBERED.sub("", line).strip() for line in Path(file).read_text().splitlines() if line.strip()]
    done, violated = replay(scenarios.named(name).make, schedule)
    for step in done:
        print(step)
    print(violated or "nothing is violated")
    return int(violated is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
