"""``fluxctl artifacts``: what pauses and snapshots have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, LazyGroup, pass_invocation
from flux.cli.invocation import Invocation
from flux.cli.progress import working

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "list": "flux.cli.artifacts:list_",
    "get": "flux.cli.artifacts:get",
    "rm": "flux.cli.artifacts:remove",
    "verify": "flux.cli.artifacts:verify",
    "collect": "flux.cli.artifacts:collect",
}
artifact_argument = click.argument("artifact", metavar="ARTIFACT")


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def artifacts() -> None:
    """See, check and remove what pauses and snapshots have saved. ARTIFACT is an id, or a snapshot's name."""


@click.command("list", cls=Command)
@click.option("--sandbox", metavar="SB", help="Only those of this sandbox.")
@pass_invocation
def list_(invocation: Invocation, sandbox: str | None) -> None:
    """List artifacts, newest first."""

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.artifacts(console, found)

    invocation.emit(invocation.call("artifact.list", query={"sandbox": sandbox}), show)


@click.command(cls=Command)
@artifact_argument
@pass_invocation
def get(invocation: Invocation, artifact: str) -> None:
    """Show an artifact."""
    invocation.emit(invocation.call("artifact.get", artifact=artifact), _show)


@click.command("rm", cls=Command)
@artifact_argument
@pass_invocation
def remove(invocation: Invocation, artifact: str) -> None:
    """Forget a snapshot; a sandbox's own last pause goes with the sandbox."""
    reply = invocation.call("artifact.delete", artifact=artifact)
    invocation.emit(reply, lambda console, item: console.print(f"Forgot {item['id']}."))


@click.command(cls=Command)
@artifact_argument
@pass_invocation
def verify(invocation: Invocation, artifact: str) -> None:
    """Hash every part of an artifact where it lies."""
    with working(invocation, "hashing"):
        reply = invocation.call("artifact.verify", artifact=artifact)
    invocation.emit(reply, lambda console, item: console.print(f"{item['id']} is whole."))


@click.command(cls=Command)
@pass_invocation
def collect(invocation: Invocation) -> None:
    """Clear up the object store: what nothing needs is marked now and deleted by a later call."""
    with working(invocation, "looking through the object store"):
        reply = invocation.call("artifact.collect")

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import words

        marked, deleted = (words.number(found[name], "object", "objects") for name in ("marked", "deleted"))
        console.print(f"Marked {marked}; deleted {deleted}, {words.size(found['bytes'])}.")

    invocation.emit(reply, show)


def _show(console: Console, item: Any) -> None:
    from flux.cli.show import tables

    tables.artifact(console, item)
