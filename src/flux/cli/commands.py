"""What the command groups are built from: lazily imported commands, ``--json`` everywhere, shared options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import click

from flux.cli.invocation import Invocation

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def pass_invocation(function: Callable[..., R]) -> Callable[..., R]:
    """Give the command the run it belongs to as its first argument."""
    return click.make_pass_decorator(Invocation)(function)


class Command(click.Command):
    """A command that also takes ``--json`` after its name, and whose name other processes may be told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                callback=_ask_json,
                help="Print JSON, also on a terminal.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        invocation = ctx.find_object(Invocation)
        if invocation is not None:
            invocation.begin(ctx.command_path)
        return super().invoke(ctx)


def _ask_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        invocation = ctx.find_object(Invocation)
        if invocation is not None:
            invocation.json_asked = True


class LazyGroup(click.Group):
    """A group that imports the module of a command when that command is used, so that start-up stays short.

    Args:
        commands_in: command name → ``module:attribute``.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands_in = dict(commands_in or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were stated."""
        return list(self.commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        place = self.commands_in.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, naming the nearest one if there is none of that name."""
        if args and args[0] not in self.commands_in and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], list(self.commands_in), n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self.commands_in)}"
            ctx.fail(f"no such command {args[0]!r}; {advice}")
        return super().resolve_command(ctx, args)


class Pairs(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        name, equals, content = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, content


sandbox_argument = click.argument("sandbox", metavar="SB")
changeset_argument = click.argument("changeset", metavar="CS")
comment_option = click.option("--comment", metavar="TEXT", help="Kept with the decision.")
command_argument = click.argument("words", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
scope_option = click.option(
    "--conflict-scope",
    type=click.Choice(["all", "touched"]),
    help="What must not have changed before the apply: all of the paths, or only what the command touched.",
)


def run_options(function: F) -> F:
    """Add what every way of running a command takes."""
    options = (
        click.option("--env", "environment", multiple=True, type=Pairs(), help="Add a variable. May be repeated."),
        click.option("--cwd", metavar="DIR", help="Working directory inside the sandbox."),
        click.option("--user", metavar="NAME", help="User inside the sandbox."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Kill the command and all it started after this time.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def copy_options(function: F) -> F:
    """Add what every run in a throwaway copy takes."""
    options = (
        click.option("--path", "paths", multiple=True, metavar="P", help="Only look at this part. May be repeated."),
        click.option(
            "--network",
            type=click.Choice(["sandbox", "none"]),
            default="sandbox",
            help="none: no network for this run, whatever the sandbox has.",
        ),
        click.option(
            "--copy-engine",
            type=click.Choice(["auto", "snapshot", "overlay", "reflink", "copy"]),
            default="auto",
            help="How the throwaway copy is made.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def command_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """Return what the words after ``--`` mean: one word is a line for the shell, several are a program's arguments."""
    return {"command": words[0]} if len(words) == 1 else {"argv": list(words)}


def run_fields(
    words: tuple[str, ...],
    environment: tuple[tuple[str, str], ...],
    cwd: str | None,
    user: str | None,
    timeout: float | None,
) -> dict[str, Any]:
    """Return the fields that every request to run a command has."""
    return {
        **command_fields(words),
        "environment": dict(environment),
        "cwd": cwd,
        "user": user,
        "timeout_seconds": timeout,
    }
