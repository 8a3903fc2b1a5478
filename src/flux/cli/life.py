"""``fluxctl sandbox pause|resume|snapshot|fork``: what a sandbox's life has beside its beginning and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, pass_invocation, sandbox_argument
from flux.cli.invocation import Invocation
from flux.cli.progress import working
from flux.core.paths import printable
from flux.core.requests import Fork, Pause, Resume, TakeSnapshot

if TYPE_CHECKING:
    from rich.console import Console

_SOURCES = {
    "running": "It was running.",
    "artifact": "Its files are as they were when it was paused; its processes ended then.",
    "last_artifact_after_stop": "Its last execution had ended without being saved: it goes on from the last pause.",
    "cold": "It began anew: nothing was ever saved of it.",
}


@click.command(cls=Command)
@sandbox_argument
@click.option("--durable", is_flag=True, help="Return only when the object store has all of it, not just this node.")
@pass_invocation
def pause(invocation: Invocation, sandbox: str, durable: bool) -> None:
    """Save a sandbox's files and end its processes; resume goes on from there."""
    with working(invocation, "saving and uploading" if durable else "saving"):
        reply = invocation.call("sandbox.pause", body=Pause(durable=durable), sandbox=sandbox)

    def show(console: Console, item: Any) -> None:
        if item["artifact_durable"]:
            safe = "the object store has all of it"
        elif item["layout"] == "bound":
            safe = "its directory stays as it is"
        else:
            safe = f"safe on the node {item['node']}"
        console.print(f"Paused {_named(item)}: {safe}. To go on:")
        console.print("  " + invocation.hint("sandbox", "resume", sandbox))

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Let it live at least so long from now; what it has left is never shortened.",
)
@pass_invocation
def resume(invocation: Invocation, sandbox: str, timeout: int | None) -> None:
    """Make a paused sandbox run again."""
    with working(invocation, "waking the sandbox"):
        reply = invocation.call("sandbox.resume", body=Resume(timeout_seconds=timeout), sandbox=sandbox)

    def show(console: Console, item: Any) -> None:
        console.print(f"{_named(item)} runs on the node {item['node']}. {_SOURCES.get(item['woke_from'], '')}".rstrip())

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@click.option("--name", metavar="NAME", help="A name that the snapshot can be found by.")
@pass_invocation
def snapshot(invocation: Invocation, sandbox: str, name: str | None) -> None:
    """Save a sandbox as it is to an artifact, and let it run on."""
    with working(invocation, "saving"):
        reply = invocation.call("sandbox.snapshot", body=TakeSnapshot(name=name), sandbox=sandbox)

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import words

        called = f" as {printable(item['name'])}" if item["name"] else ""
        console.print(
            f"Saved {item['id']}{called}: {words.size(item['size'])}, {words.size(item['stored'])} of it new."
        )

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@click.option("-n", "--count", type=click.IntRange(1, 100), default=1, show_default=True, help="How many to make.")
@click.option("--name", metavar="NAME", help="Name of the copy; several are called NAME-1, NAME-2 and so on.")
@click.option("--ttl-seconds", type=click.IntRange(min=1), help="Their time-out. Default: as the source's.")
@pass_invocation
def fork(invocation: Invocation, sandbox: str, count: int, name: str | None, ttl_seconds: int | None) -> None:
    """Make running sandboxes of one as it is now, or as it was paused."""
    with working(invocation, "copying the sandbox"):
        body = Fork(count=count, name=name, ttl_seconds=ttl_seconds)
        reply = invocation.call("sandbox.fork", body=body, sandbox=sandbox)

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.sandboxes(console, found)

    invocation.emit(reply, show)


def _named(item: Any) -> str:
    return printable(item["name"] or item["id"])
