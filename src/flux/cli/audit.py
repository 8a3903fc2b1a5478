"""``fluxctl audit`` and ``events``: what has happened, and what happens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import Command, pass_invocation
from flux.cli.invocation import Invocation, encode_json, write_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

_POLL_SECONDS = 0.5
_LONG_POLL_SECONDS = 20.0
_LIMIT = 500


def _filters(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--sandbox", "sandbox_id", metavar="SB", help="Only about this sandbox."),
        click.option("--changeset", metavar="CS", help="Only about this changeset."),
        click.option("--event", metavar="NAME", help="Only this event, such as changeset.applied."),
        click.option("--actor", metavar="NAME", help="Only by this actor."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(cls=Command)
@_filters
@click.option("--since", metavar="TIME", help="Only since this time, such as 2024-05-01T12:00:00Z.")
@pass_invocation
def audit(invocation: Invocation, **filters: str | None) -> None:
    """Show the audit log, oldest first."""
    reply = {"items": _read_to_end(invocation, filters)[0], "next_cursor": None}

    def show(console: Console, page: Any) -> None:
        from flux.cli.show import tables

        for line in page["items"]:
            console.print(tables.audit_line(line))

    invocation.emit(reply, show)


def _read_to_end(invocation: Invocation, filters: dict[str, str | None]) -> tuple[list[Any], str | None]:
    """Return the lines up to now and where later ones begin; pages always name a next one, an empty page is the end."""
    items: list[Any] = []
    cursor: str | None = None
    while True:
        page = invocation.call("audit.list", query={**filters, "limit": _LIMIT, "cursor": cursor})
        items.extend(page["items"])
        cursor = page["next_cursor"] or cursor
        if not page["items"]:
            return items, cursor


@click.command(cls=Command)
@_filters
@pass_invocation
def events(invocation: Invocation, **filters: str | None) -> None:
    """Follow what happens from now on, one line for each event, until interrupted."""
    _, cursor = _read_to_end(invocation, filters)
    while True:
        page = _next_page(invocation, filters, cursor)
        for line in page["items"]:
            _write_line(invocation, line)
        cursor = page["next_cursor"] or cursor


def _next_page(invocation: Invocation, filters: dict[str, str | None], cursor: str | None) -> Any:
    # An engine in this process keeps others from doing anything, so it lets go of the state directory in between.
    embedded = invocation.session.embedded
    wait = 0.0 if embedded else _LONG_POLL_SECONDS
    query = {**filters, "limit": _LIMIT, "cursor": cursor, "wait_seconds": wait}
    page = invocation.call("audit.list", query=query)
    if embedded and not page["items"]:
        invocation.session.release()
        time.sleep(_POLL_SECONDS)
    return page


def _write_line(invocation: Invocation, line: Any) -> None:
    if invocation.json:
        write_bytes(encode_json(line) + b"\n")
    else:
        from flux.cli.invocation import console
        from flux.cli.show import tables

        console().print(tables.audit_line(line))
