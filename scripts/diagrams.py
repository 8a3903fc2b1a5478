"""Write the diagrams that are rendered from tables in the code; ``--check`` only says whether they are fresh.

Each stands in a page between two marks that name its table. A test runs the check, so no page can say anything else
than the code.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from flux.core import changeset, lifecycle
from flux.core.changeset import State
from flux.core.lifecycle import ControlState, NodeState
from flux.core.machine import Machine

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end of drawing -->"


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A table and where it is drawn. ``first``: the states in which a life begins, ``last`` those in which it ends.

    ``outside``: a state that stands for not being there, which is drawn as the beginning and the end.
    """

    page: str
    name: str
    machine: Machine[Any, Any]
    first: tuple[StrEnum, ...] = ()
    last: Collection[StrEnum] = ()
    outside: StrEnum | None = None

    @property
    def begin(self) -> str:
        """The mark that the drawing stands after."""
        return f"<!-- drawn from {self.name} by scripts/diagrams.py -->"


DRAWINGS = (
    Drawing(
        page="docs/spec/speculation.md",
        name="flux.core.changeset.LIFE",
        machine=changeset.LIFE,
        first=(State.PENDING,),
        last=[state for state in State if state in changeset.FINAL],
    ),
    Drawing(
        page="docs/spec/generations.md",
        name="flux.core.lifecycle.LIFE",
        machine=lifecycle.LIFE,
        outside=NodeState.GONE,
    ),
    Drawing(
        page="docs/spec/generations.md",
        name="flux.core.lifecycle.CONTROL_LIFE",
        machine=lifecycle.CONTROL_LIFE,
        first=(ControlState.PAUSED,),
        last=(ControlState.KILLED,),
    ),
)


def drawn(drawing: Drawing) -> str:
    """Return a table as a mermaid diagram, in the order of the table; events between the same states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in drawing.machine.table.items():
        ends = (_shown(drawing, state), _shown(drawing, target))
        arrows.setdefault(ends, []).append(event.value)
    lines = ["```mermaid", "stateDiagram-v2", *(f"    [*] --> {state.value}" for state in drawing.first)]
    lines += [f"    {state} --> {target}: {', '.join(events)}" for (state, target), events in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in drawing.last]
    return "\n".join([*lines, "```"])


def _shown(drawing: Drawing, state: StrEnum) -> str:
    return "[*]" if state is drawing.outside else state.value


def with_drawing(page: str, drawing: Drawing) -> str:
    """Return ``page`` with what stands between the marks drawn anew."""
    head, begin, rest = page.partition(drawing.begin)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{drawing.page} has lost its marks: put back {drawing.begin!r} and {END!r}")
    return f"{head}{drawing.begin}\n{drawn(drawing)}\n{END}{tail}"


def fresh_pages(drawings: Iterable[Drawing]) -> dict[str, str]:
    """Return every page that holds a drawing, with all of them drawn anew."""
    pages: dict[str, str] = {}
    for drawing in drawings:
        text = pages.get(drawing.page) or (ROOT / drawing.page).read_text(encoding="utf-8")
        pages[drawing.page] = with_drawing(text, drawing)
    return pages


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` return 1 if one is stale."""
    stale = False
    for name, fresh in fresh_pages(DRAWINGS).items():
        page = ROOT / name
        if page.read_text(encoding="utf-8") == fresh:
            continue
        if "--check" in arguments:
            print(f"{name} is stale: run `make docs`", file=sys.stderr)
            stale = True
        else:
            page.write_text(fresh, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
