"""What a person sees while something takes time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flux.cli.invocation import Invocation


@contextmanager
def working(invocation: Invocation, what: str) -> Iterator[None]:
    """Show on a terminal that ``what`` goes on, and for how long; nothing elsewhere."""
    if invocation.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    terminal = Console(stderr=True)
    if terminal.is_dumb_terminal:
        yield
        return
    with Progress(*columns, console=terminal, transient=True) as progress:
        progress.add_task(what, total=None)
        yield
