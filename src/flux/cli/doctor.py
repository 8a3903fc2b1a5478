"""``fluxctl doctor``: what works on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, pass_invocation
from flux.cli.errors import EXIT_CODES
from flux.cli.invocation import Invocation
from flux.core.errors import Code

if TYPE_CHECKING:
    from rich.console import Console


@click.command(cls=Command)
@pass_invocation
def doctor(invocation: Invocation) -> int:
    """Show which kinds of sandboxes work here, why not, and what would fix it."""
    reply = invocation.call("doctor")

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.findings(console, found)

    invocation.emit(reply, show)
    return 0 if reply["ok"] else EXIT_CODES[Code.UNAVAILABLE]
