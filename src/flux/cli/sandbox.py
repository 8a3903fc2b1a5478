"""``fluxctl sandbox``: the group, and the commands of a sandbox's life and its baseline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from flux.cli.commands import (
    Command,
    LazyGroup,
    Pairs,
    command_argument,
    copy_options,
    pass_invocation,
    run_fields,
    run_options,
    sandbox_argument,
)
from flux.cli.endings import exit_status
from flux.cli.invocation import Invocation
from flux.cli.progress import working
from flux.core.requests import CreateSandbox, DryRun, MountRequest

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "create": "flux.cli.sandbox:create",
    "list": "flux.cli.sandbox:list_",
    "get": "flux.cli.sandbox:get",
    "rm": "flux.cli.sandbox:remove",
    "pause": "flux.cli.life:pause",
    "resume": "flux.cli.life:resume",
    "snapshot": "flux.cli.life:snapshot",
    "fork": "flux.cli.life:fork",
    "metrics": "flux.cli.metrics:metrics",
    "exec": "flux.cli.execute:exec_",
    "shell": "flux.cli.execute:shell",
    "cp": "flux.cli.copy:copy",
    "baseline": "flux.cli.sandbox:baseline",
    "diff": "flux.cli.sandbox:diff",
    "dry-run": "flux.cli.sandbox:dry_run",
    "speculate": "flux.cli.speculation:speculate",
    "changesets": "flux.cli.speculation:changesets",
    "changeset": "flux.cli.speculation:changeset",
    "approve": "flux.cli.decisions:approve",
    "reject": "flux.cli.decisions:reject",
    "apply": "flux.cli.decisions:apply",
    "revert": "flux.cli.decisions:revert",
    "rerun": "flux.cli.decisions:rerun",
    "compare": "flux.cli.speculation:compare",
    "export": "flux.cli.speculation:export",
    "wait": "flux.cli.speculation:wait",
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def sandbox() -> None:
    """Create sandboxes, run commands in them, and decide about what they changed.

    SB is a sandbox's id or name, CS a changeset's id. What stands after -- is the command: one word is a line for the
    shell, several are a program and its arguments.
    """


class _ReadOnlyMount(click.ParamType[MountRequest]):
    name = "SRC:DST:ro"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MountRequest:
        if isinstance(value, MountRequest):
            return value
        source, _, rest = str(value).partition(":")
        target, _, mode = rest.rpartition(":")
        if not source or not target.startswith("/") or mode != "ro":
            self.fail(f"{value!r} is not SRC:DST:ro with an absolute DST; mounts are read-only", param, ctx)
        return MountRequest(source=os.path.abspath(source), target=target)


@click.command(cls=Command)
@click.option("--kind", metavar="KIND", help="What runs it; see fluxctl doctor. Default: procbox.")
@click.option("--workspace", metavar="DIR", help="Bind this directory as the workspace, seen inside as /work.")
@click.option("--template", metavar="NAME", help="Without --workspace: the template of the managed workspace.")
@click.option("--snapshot", metavar="ART", help="Start from a snapshot, by its id or name, in place of a template.")
@click.option("--name", metavar="NAME", help="A unique name that can be used for the id.")
@click.option(
    "--net-port",
    "net_ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    help="Allow TCP connections to this port. May be repeated. Without it there is no network.",
)
@click.option("--internet", is_flag=True, help="Let it reach any public address, and resolve names.")
@click.option(
    "--mount",
    "mounts",
    type=_ReadOnlyMount(),
    metavar="SRC:DST:ro",
    multiple=True,
    help="Add a read-only directory. May be repeated.",
)
@click.option("--env", "environment", type=Pairs(), multiple=True, help="A variable of every command. May be repeated.")
@click.option("--memory-mib", type=click.IntRange(min=1), help="Bound of its memory, in MiB.")
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Bound of its processor time, in processors.")
@click.option("--pids", type=click.IntRange(min=1), help="Bound of its processes and threads.")
@click.option("--ttl-seconds", type=click.IntRange(min=1), help="Its time-out; what happens then: --on-timeout.")
@click.option(
    "--on-timeout", type=click.Choice(["kill", "pause"]), default="kill", show_default=True, help="At its time-out."
)
@click.option("--auto-resume", is_flag=True, help="Wake it when its files or commands are used by its access token.")
@click.option("--owner", metavar="KEY", help="The key that it is for, by id or name: how an agent gets its sandbox.")
@click.option("--idempotency-key", metavar="KEY", help="The same key and options give the same sandbox again.")
@pass_invocation
def create(
    invocation: Invocation,
    workspace: str | None,
    net_ports: tuple[int, ...],
    mounts: tuple[MountRequest, ...],
    environment: tuple[tuple[str, str], ...],
    idempotency_key: str | None,
    **fields: Any,
) -> None:
    """Create a sandbox."""
    request = CreateSandbox(
        workspace=None if workspace is None else os.path.abspath(workspace) if workspace else "",
        net_ports=list(net_ports),
        mounts=list(mounts),
        environment=dict(environment),
        **fields,
    )
    reply = invocation.call("sandbox.create", body=request, idempotency_key=idempotency_key)

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import tables

        tables.sandbox(console, item, invocation.now())
        line = invocation.hint("sandbox", "speculate", item["name"] or item["id"])
        console.print(f"\nTry a command without changing anything:\n  {line} -- CMD...")

    invocation.emit(reply, show)


@click.command("list", cls=Command)
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the sandboxes, newest first."""
    from flux.cli.pages import every_page

    reply = every_page(invocation, "sandbox.list")

    def show(console: Console, page: Any) -> None:
        from flux.cli.show import tables

        tables.sandboxes(console, page)

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@pass_invocation
def get(invocation: Invocation, sandbox: str) -> None:
    """Show a sandbox."""

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import tables

        tables.sandbox(console, item, invocation.now())

    invocation.emit(invocation.call("sandbox.get", sandbox=sandbox), show)


@click.command("rm", cls=Command)
@sandbox_argument
@pass_invocation
def remove(invocation: Invocation, sandbox: str) -> None:
    """Delete a sandbox; a bound workspace directory stays, open changesets are rejected."""
    reply = invocation.call("sandbox.delete", sandbox=sandbox)
    invocation.emit(reply, lambda console, item: console.print(f"Deleted {item['id']}."))


@click.command(cls=Command)
@sandbox_argument
@pass_invocation
def baseline(invocation: Invocation, sandbox: str) -> None:
    """Remember the tree as it is now; `diff` compares with it."""
    reply = invocation.call("sandbox.baseline", sandbox=sandbox)

    def show(console: Console, item: Any) -> None:
        from flux.cli.show import words

        entries = words.number(item["entries"], "entry", "entries")
        console.print(f"Remembered {entries}, {words.size(item['size'])}. See what changes from now on:")
        console.print("  " + invocation.hint("sandbox", "diff", sandbox))

    invocation.emit(reply, show)


@click.command(cls=Command)
@sandbox_argument
@click.option("--path", metavar="P", help="Only look at this part.")
@pass_invocation
def diff(invocation: Invocation, sandbox: str, path: str | None) -> None:
    """Show what changed in the real sandbox since its baseline."""
    reply = invocation.call("sandbox.changes", sandbox=sandbox, query={"path": path})

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import changeset

        for line in changeset.change_lines(found["changes"]):
            console.print(line)

    invocation.emit(reply, show)


@click.command("dry-run", cls=Command)
@sandbox_argument
@run_options
@copy_options
@click.option("--exit-code", is_flag=True, help="End with the command's own exit code.")
@command_argument
@pass_invocation
def dry_run(
    invocation: Invocation,
    sandbox: str,
    paths: tuple[str, ...],
    network: Any,
    copy_engine: Any,
    exit_code: bool,
    **run: Any,
) -> int:
    """Run a command in a throwaway copy, show what it changed, keep nothing."""
    request = DryRun(paths=list(paths) or None, network=network, copy_engine=copy_engine, **run_fields(**run))
    with working(invocation, "running the command in a throwaway copy"):
        reply = invocation.call("sandbox.dry-run", sandbox=sandbox, body=request)

    def show(console: Console, found: Any) -> None:
        from flux.cli.show import changeset, words

        console.print(f"Dry run: {words.ending(found)}; nothing was kept")
        for line in changeset.body(found):
            console.print(line)

    invocation.emit(reply, show)
    return exit_status(reply) if exit_code else 0
