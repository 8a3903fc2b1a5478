"""Write the diagrams that are rendered from tables in the code; ``--check`` only says whether they are fresh.

The state diagram of a changeset stands in docs/spec/speculation.md between two marks, drawn from
``flux.core.changeset.LIFE``. A test runs the check, so the page cannot say anything else than the code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flux.core.changeset import FINAL, LIFE, State

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/spec/speculation.md"
BEGIN = "<!-- drawn from flux.core.changeset.LIFE by scripts/diagrams.py -->"
END = "<!-- end of drawing -->"


def changeset_life() -> str:
    """Return the changeset's states as a mermaid diagram, in the order of the table."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.PENDING.value}"]
    lines += [f"    {state.value} --> {target.value}: {event.value}" for (state, event), target in LIFE.table.items()]
    lines += [f"    {state.value} --> [*]" for state in State if state in FINAL]
    return "\n".join([*lines, "```"])


def with_drawing(page: str) -> str:
    """Return ``page`` with what stands between the marks drawn anew."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has lost its marks: put back {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n{changeset_life()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` return 1 if it is stale."""
    page = PAGE.read_text(encoding="utf-8")
    fresh = with_drawing(page)
    if "--check" in arguments:
        if page != fresh:
            print(f"{PAGE.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
        return int(page != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
