"""``fluxctl sandbox metrics``: what a sandbox used lately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, pass_invocation, sandbox_argument
from flux.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.console import Console


@click.command(cls=Command)
@sandbox_argument
@click.option("--start", metavar="TIME", help="Not before this time, as 2024-05-01T12:00:00Z.")
@click.option("--end", metavar="TIME", help="Not after this time.")
@pass_invocation
def metrics(invocation: Invocation, sandbox: str, start: str | None, end: str | None) -> None:
    """Show what a sandbox used in the last half hour; a daemon takes samples while the sandbox runs."""
    reply = invocation.call("sandbox.metrics", sandbox=sandbox, query={"start": start, "end": end})

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.metrics(console, found)

    invocation.emit(reply, show)
