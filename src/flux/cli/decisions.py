"""``fluxctl sandbox approve``, ``reject``, ``apply``, ``revert`` and ``rerun``."""

from __future__ import annotations

from typing import Any

import click

from flux.cli.commands import (
    Command,
    changeset_argument,
    comment_option,
    pass_invocation,
    sandbox_argument,
    scope_option,
)
from flux.cli.invocation import Invocation
from flux.cli.progress import working
from flux.cli.speculation import emit_changeset
from flux.core.requests import Approve, Decide


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@click.option("--only", multiple=True, metavar="P", help="Keep only this path and what it needs. May be repeated.")
@click.option("--digest", metavar="D", help="The digest that was reviewed; another one is refused.")
@scope_option
@comment_option
@pass_invocation
def approve(
    invocation: Invocation,
    sandbox: str,
    changeset: str,
    only: tuple[str, ...],
    digest: str | None,
    conflict_scope: Any,
    comment: str | None,
) -> None:
    """Approve a changeset, or a part of it; nothing is written yet."""
    request = Approve(digest=digest, only=list(only) or None, conflict_scope=conflict_scope, comment=comment)
    emit_changeset(invocation, invocation.call("changeset.approve", sandbox=sandbox, changeset=changeset, body=request))


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@comment_option
@pass_invocation
def reject(invocation: Invocation, sandbox: str, changeset: str, comment: str | None) -> None:
    """Reject a changeset; what it staged is dropped."""
    _decide(invocation, "changeset.reject", "rejecting", sandbox, changeset, comment)


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@comment_option
@pass_invocation
def apply(invocation: Invocation, sandbox: str, changeset: str, comment: str | None) -> None:
    """Bring an approved changeset into the real sandbox, or change nothing."""
    _decide(invocation, "changeset.apply", "applying", sandbox, changeset, comment)


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@comment_option
@pass_invocation
def revert(invocation: Invocation, sandbox: str, changeset: str, comment: str | None) -> None:
    """Make a pending changeset that undoes an applied one."""
    _decide(invocation, "changeset.revert", "making the inverse", sandbox, changeset, comment)


@click.command(cls=Command)
@sandbox_argument
@changeset_argument
@comment_option
@pass_invocation
def rerun(invocation: Invocation, sandbox: str, changeset: str, comment: str | None) -> None:
    """Run a changeset's command again on the tree as it is now.

    The new changeset replaces the old one.
    """
    _decide(invocation, "changeset.rerun", "running the command again", sandbox, changeset, comment)


def _decide(
    invocation: Invocation, operation: str, doing: str, sandbox: str, changeset: str, comment: str | None
) -> None:
    with working(invocation, doing):
        reply = invocation.call(operation, sandbox=sandbox, changeset=changeset, body=Decide(comment=comment))
    emit_changeset(invocation, reply)
