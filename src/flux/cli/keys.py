"""``fluxctl keys``: who may use a daemon, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, LazyGroup, pass_invocation
from flux.cli.invocation import Invocation
from flux.core.paths import printable
from flux.core.requests import CreateKey

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "create": "flux.cli.keys:create",
    "list": "flux.cli.keys:list_",
    "revoke": "flux.cli.keys:revoke",
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def keys() -> None:
    """Issue, list and revoke keys."""


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "--role",
    type=click.Choice(["admin", "reviewer", "agent", "user"]),
    default="user",
    show_default=True,
    help="admin: everything; reviewer: reads and decides; agent: speculates, never decides; user: own sandboxes.",
)
@pass_invocation
def create(invocation: Invocation, name: str, role: Any) -> None:
    """Issue a key and print it; it is not shown again. E2B's clients take it from E2B_API_KEY."""
    reply = invocation.call("keys.create", body=CreateKey(name=name, role=role))

    def show(console: Console, item: Any) -> None:
        console.print(item["key"])
        console.print(f"The key of {printable(item['name'])} ({item['role']}). It is not shown again.", style="dim")

    invocation.emit(reply, show)


@click.command("list", cls=Command)
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the keys, without their secrets."""

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.keys(console, found)

    invocation.emit(invocation.call("keys.list"), show)


@click.command(cls=Command)
@click.argument("key", metavar="KEY")
@pass_invocation
def revoke(invocation: Invocation, key: str) -> None:
    """Revoke a key by id or name; it stops working at once."""
    reply = invocation.call("keys.revoke", key=key)
    invocation.emit(reply, lambda console, item: console.print(f"Revoked {printable(item['name'])}."))
