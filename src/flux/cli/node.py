"""``fluxctl node``: the machines that run sandboxes, as the control plane knows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, LazyGroup, pass_invocation
from flux.cli.invocation import Invocation
from flux.cli.progress import working
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.requests import AddNode

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "list": "flux.cli.node:list_",
    "get": "flux.cli.node:get",
    "add": "flux.cli.node:add",
    "forget": "flux.cli.node:forget",
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def node() -> None:
    """See and register the nodes that run sandboxes, and give up one that is lost."""


@click.command("list", cls=Command)
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the nodes."""

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.nodes(console, found)

    invocation.emit(invocation.call("node.list"), show)


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@pass_invocation
def get(invocation: Invocation, name: str) -> None:
    """Show a node."""
    invocation.emit(invocation.call("node.get", node=name), _show)


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--address", metavar="HOST:PORT", required=True, help="Where its manager listens: its [node] listen.")
@click.option("--token-file", metavar="FILE", required=True, help="A copy of node.token of its state directory.")
@click.option("--ca-file", metavar="FILE", help="Trust this certificate authority (PEM) and speak TLS with the node.")
@pass_invocation
def add(invocation: Invocation, name: str, address: str, token_file: str, ca_file: str | None) -> None:
    """Register a node, after asking it who it is."""
    request = AddNode(
        name=name,
        address=address,
        token=_read(token_file).strip(),
        authority=None if ca_file is None else _read(ca_file),
    )
    with working(invocation, "asking the node who it is"):
        reply = invocation.call("node.add", body=request)
    invocation.emit(reply, _show)


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def forget(invocation: Invocation, name: str, yes: bool) -> None:
    """Declare everything on a node lost. Only for one that really is: what was not uploaded from it is gone."""
    if not yes:
        if invocation.json:
            raise FluxError(
                Code.INVALID,
                f"cannot forget the node {printable(name)} unasked: what was not uploaded from it is gone; add --yes",
            )
        click.confirm(f"Declare everything on the node {name} lost?", abort=True, err=True)
    reply = invocation.call("node.forget", node=name)
    invocation.emit(reply, lambda console, item: console.print(f"Forgot the node {printable(item['name'])}."))


def _show(console: Console, item: Any) -> None:
    from flux.cli.show import tables

    tables.node(console, item)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise FluxError(Code.INVALID, f"cannot read {printable(file)}: {reason.lower()}") from error
