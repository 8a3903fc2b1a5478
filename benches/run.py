"""Run the comparisons and print them: ``python -m benches.run [NAME…]``. Slow or fast, it exits 0: no test."""

from __future__ import annotations

import importlib
import sys
import traceback

from benches.measure import Row

NAMES = (
    "small_tree",
    "large_tree",
    "base_file",
    "many_files",
    "memory",
    "suspension",
    "activation",
    "wakes",
    "second_try",
    "uploads",
    "e2b",
)
HEAD = f"{'comparison':<66} {'measured':>12} {'reference':>12} {'score':>11} {'target':>11}"


def line(row: Row) -> str:
    """Return a row as it is printed."""
    sign, unit = {"ratio": ("", "×"), "more": ("+", f" {row.unit}"), "absolute": ("", f" {row.unit}")}[row.kind]
    score = f"{sign}{row.score:.2f}{unit}"
    target = f"≤ {sign}{row.limit:g}{unit}"
    verdict = "" if row.kept else "  missed"
    return (
        f"{row.name:<66} {f'{row.value:.1f} {row.unit}':>12} {f'{row.reference:.1f} {row.unit}':>12}"
        f" {score:>11} {target:>11}{verdict}"
    )


def main(names: list[str]) -> int:
    """Run the comparisons named, or all; return 1 only if one could not be run."""
    print(HEAD, flush=True)
    broken = 0
    for name in names or NAMES:
        try:
            for row in importlib.import_module(f"benches.{name}").run():
                print(line(row), flush=True)
        except Exception:
            traceback.print_exc()
            broken = 1
    return broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
