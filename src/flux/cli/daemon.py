"""``fluxctl daemon``: start, stop and look at the daemon of a state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, LazyGroup, pass_invocation
from flux.cli.invocation import DaemonStatus, Invocation
from flux.cli.progress import working
from flux.core.paths import printable

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "start": "flux.cli.daemon:start",
    "stop": "flux.cli.daemon:stop",
    "status": "flux.cli.daemon:status",
}
NOT_RUNNING = 1


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def daemon() -> None:
    """Start, stop and look at fluxd, which keeps sandboxes running and serves REST."""


@click.command(cls=Command)
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 picks a free one.")
@click.option(
    "--role",
    type=click.Choice(["all", "control", "node"]),
    default="all",
    show_default=True,
    help="node: run sandboxes for a control plane elsewhere; control: run none here; all: both in one.",
)
@pass_invocation
def start(invocation: Invocation, listen: str | None, role: str) -> None:
    """Start fluxd in the background and wait until it answers."""
    with working(invocation, "starting the daemon"):
        status = invocation.session.start_daemon(listen, role)
    invocation.emit(status, _show)


@click.command(cls=Command)
@pass_invocation
def stop(invocation: Invocation) -> None:
    """Stop fluxd; the processes of its sandboxes end with it."""
    with working(invocation, "stopping the daemon"):
        status = invocation.session.stop_daemon()
    invocation.emit(status, _show)


@click.command(cls=Command)
@pass_invocation
def status(invocation: Invocation) -> int:
    """Tell whether fluxd runs on this state directory; ends with 1 if not."""
    found = invocation.session.daemon_status()
    invocation.emit(found, _show)
    return 0 if found.running else NOT_RUNNING


def _show(console: Console, status: Any) -> None:
    found: DaemonStatus = status
    place = printable(found.state_directory)
    if not found.running:
        console.print(f"No daemon runs on {place}.")
        return
    console.print(f"A daemon runs on {place} (process {found.pid}).")
    for name, value in (("listens at", found.url), ("its log", found.log)):
        if value:
            console.print(f"  {name:<11} {printable(value)}")
