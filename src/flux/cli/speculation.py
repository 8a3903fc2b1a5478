"""``fluxctl sandbox speculate`` and the commands that look at changesets."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import (
    Command,
    changeset_argument,
    command_argument,
    copy_options,
    pass_invocation,
    run_fields,
    run_options,
    sandbox_argument,
    scope_option,
)
from flux.cli.endings import exit_status
from flux.cli.errors import TIMED_OUT
from flux.cli.invocation import Invocation
from flux.cli.progress import working
from flux.core.errors import Code, FluxError
from flux.core.requests import Speculate

if TYPE_CHECKING:
    from rich.console import Console

_POLL_SECONDS = 0.2
_LONG_POLL_SECONDS = 30.0


@click.command(cls=Command)
@sandbox_argument
@run_options
@copy_options
@scope_option
@click.option(
    "--ttl-seconds", type=int, help="How long the changeset waits for its decision, at most 86400. Default: 3600."
)
@click.option("--from", "parent", metavar="CS", help="Start from what this changeset, not yet applied, would make.")
@click.option("--exit-code", is_flag=True, help="End with the command's own exit code.")
@command_argument
@pass_invocation
def speculate(
    invocation: Invocation,
    sandbox: str,
    paths: tuple[str, ...],
    network: Any,
    copy_engine: Any,
    conflict_scope: Any,
    ttl_seconds: int | None,
    parent: str | None,
    exit_code: bool,
    **run: Any,
) -> int:
    """Run a command in a throwaway copy and stage what it changed as a changeset.

    The real sandbox is not touched. Ends with 0 when there is a changeset, whatever the command's own exit code, which
    is in it; --exit-code returns the command's.
    """
    request = Speculate(
        paths=list(paths) or None,
        network=network,
        copy_engine=copy_engine,
        conflict_scope=conflict_scope,
        ttl_seconds=ttl_seconds,
        parent=parent,
        **run_fields(**run),
    )
    with working(invocation, "running the command in a throwaway copy"):
        reply = invocation.call("sandbox.speculate", sandbox=sandbox, body=request)
    emit_changeset(invocation, reply)
    return exit_status(reply) if exit_code else 0


def emit_changeset(invocation: Invocation, reply: Any) -> None:
    """Print a changeset as its reviewer wants it, or as JSON."""

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import changeset

        changeset.show(console, item, hint=invocation.hint, now=invocation.now())

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@pass_invocation
def changesets(invocation: Invocation, sandbox: str) -> None:
    """List the changesets of a sandbox, newest first."""
    from flux.cli.pages import every_page

    def show(console: Console, page: Any) -> None:
        from flux.cli.show import tables

        tables.changesets(console, page)

    invocation.emit(every_page(invocation, "changeset.list", sandbox=sandbox), show)


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@click.option("--diff", "with_diff", is_flag=True, help="With text diffs.")
@click.option("--file", "file", metavar="P", help="Write the staged content of this file to stdout.")
@pass_invocation
def changeset(invocation: Invocation, sandbox: str, changeset: str, with_diff: bool, file: str | None) -> None:
    """Show a changeset: risks and deletions first, then the rest."""
    if file is not None:
        _write_out(invocation, "changeset.file", None, sandbox=sandbox, changeset=changeset, path=file)
        return
    reply = invocation.call("changeset.get", sandbox=sandbox, changeset=changeset)
    diffs = None
    if with_diff:
        diffs = invocation.call("changeset.diff", sandbox=sandbox, changeset=changeset)["files"]
        reply = {**reply, "diff": diffs}

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import changeset as view

        view.show(console, item, hint=invocation.hint, now=invocation.now(), diffs=diffs)

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@click.argument("changesets", metavar="CS CS...", nargs=-1, required=True)
@pass_invocation
def compare(invocation: Invocation, sandbox: str, changesets: tuple[str, ...]) -> None:
    """Show side by side what several changesets make of each path."""
    if len(changesets) < 2:
        raise click.UsageError("compare takes two changesets or more")
    reply = invocation.call("changeset.compare", sandbox=sandbox, query={"changeset": list(changesets)})

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import tables

        tables.comparison(console, found)

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@click.option("--patch", "form", flag_value="patch", default=True, help="A unified diff of the text files (default).")
@click.option("--tar", "form", flag_value="tar", help="A tar archive of all staged contents.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file rather than to stdout.")
@pass_invocation
def export(invocation: Invocation, sandbox: str, changeset: str, form: str, output: str | None) -> None:
    """Write a changeset out as a patch or a tar archive."""
    if form == "tar" and output is None and sys.stdout.isatty():
        raise FluxError(
            Code.INVALID, "cannot write a tar archive to a terminal: name a file with -o FILE, or use a pipe"
        )
    query = {"format": form}
    _write_out(invocation, "changeset.export", output, query=query, sandbox=sandbox, changeset=changeset)


def _write_out(invocation: Invocation, operation: str, output: str | None, **arguments: Any) -> None:
    client = invocation.session.client()
    if output is not None:
        try:
            with open(output, "wb") as stream:  # noqa: PTH123 - pathlib is slow to import
                client.download(operation, stream, **arguments)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FluxError(Code.DENIED, f"cannot write {os.fspath(output)!r}: {reason}") from error
    elif sys.stdout.isatty():
        _show_text(client, operation, arguments)
    else:
        client.download(operation, sys.stdout.buffer, **arguments)


def _show_text(client: Any, operation: str, arguments: dict[str, Any]) -> None:
    """Print content on a terminal line by line, escaping what the terminal would obey."""
    import io

    from flux.cli.show import words

    content = io.BytesIO()
    client.download(operation, content, **arguments)
    for line in content.getvalue().decode("utf-8", "surrogateescape").splitlines():
        sys.stdout.write(words.line(line) + "\n")


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer. Default: for ever.")
@pass_invocation
def wait(invocation: Invocation, sandbox: str, changeset: str, timeout: float | None) -> int:
    """Wait until somebody has decided about a changeset.

    Ends with 124 if nobody did in time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with working(invocation, "waiting for a decision"):
        reply = _decided(invocation, sandbox, changeset, deadline)
    emit_changeset(invocation, reply)
    return TIMED_OUT if reply["state"] == "pending" else 0


def _decided(invocation: Invocation, sandbox: str, changeset: str, deadline: float | None) -> Any:
    while True:
        left = _LONG_POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        # An engine in this process keeps others from deciding, so it lets go of the state directory in between.
        embedded = invocation.session.embedded
        query = {"timeout_seconds": 0.0 if embedded else min(left, _LONG_POLL_SECONDS)}
        reply = invocation.call("changeset.wait", sandbox=sandbox, changeset=changeset, query=query)
        if reply["state"] != "pending" or (deadline is not None and time.monotonic() >= deadline):
            return reply
        if embedded:
            invocation.session.release()
            time.sleep(min(_POLL_SECONDS, left))
