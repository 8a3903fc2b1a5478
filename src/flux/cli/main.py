"""The root of the command line: global options, the groups, and how a run ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from flux.cli.commands import LazyGroup, pass_invocation
from flux.cli.errors import EXIT_CODES, INTERRUPTED, SIGNAL_BASE, report
from flux.cli.invocation import Invocation, Opener, drop_output
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

if TYPE_CHECKING:
    from flux.ports.clock import Clock

PROGRAM = "fluxctl"
COMPLETION = "_FLUXCTL_COMPLETE"
_REPEATED = ("state_dir", "server", "config")
_BROKEN_PIPE = SIGNAL_BASE + 13

GROUPS = {
    "sandbox": "flux.cli.sandbox:sandbox",
    "node": "flux.cli.node:node",
    "artifacts": "flux.cli.artifacts:artifacts",
    "audit": "flux.cli.audit:audit",
    "events": "flux.cli.audit:events",
    "doctor": "flux.cli.doctor:doctor",
    "keys": "flux.cli.keys:keys",
    "daemon": "flux.cli.daemon:daemon",
    "completion": "flux.cli.completion:completion",
}


@click.group(
    cls=LazyGroup,
    commands_in=GROUPS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--state-dir", metavar="DIR", envvar="FLUX_STATE_DIR", help="Work on this state directory.")
@click.option("--server", metavar="URL", envvar="FLUX_SERVER", help="Talk to a daemon: http://HOST:PORT or unix:PATH.")
@click.option("--token", metavar="TOKEN", envvar="FLUX_TOKEN", help="Token or key for the daemon.")
@click.option("--config", metavar="FILE", envvar="FLUX_CONFIG", help="Read this file instead of the usual flux.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal.")
@click.version_option(package_name="flux-sandbox", prog_name="fluxctl", message="%(prog)s %(version)s")
@pass_invocation
@click.pass_context
def root(
    ctx: click.Context,
    invocation: Invocation,
    state_dir: str | None,
    server: str | None,
    token: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Run commands in sandboxes, see what they changed, and apply it or not.

    Without a daemon, commands work on the state directory by themselves; if a daemon owns it, they talk to the daemon.
    Replies are JSON when stdout is not a terminal.
    """
    given = {name for name in ("state_dir", "server") if _typed(ctx, name)}
    if given == {"state_dir", "server"}:
        raise click.UsageError("--state-dir and --server exclude each other: a daemon has a state directory of its own")
    # What was typed wins over what the environment says about the other one.
    invocation.options.state_directory = None if given == {"server"} else state_dir or None
    invocation.options.server = None if given == {"state_dir"} else server or None
    invocation.options.token = token or None
    invocation.options.config = config or None
    invocation.options.typed = _typed_words(ctx)
    invocation.json_asked = as_json


def _typed_words(ctx: click.Context) -> list[str]:
    pairs = [(f"--{name.replace('_', '-')}", ctx.params[name]) for name in _REPEATED if _typed(ctx, name)]
    return [word for pair in pairs for word in pair]


def _typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


class Terminated(BaseException):
    """A signal asked this process to end; raised where it stood, so that what was begun is put back first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def run(arguments: Sequence[str], opener: Opener, clock: Clock) -> int:
    """Run the command line and return its exit code; every error has been reported.

    Args:
        arguments: the words after the program's name.
        opener: makes the session that commands work with.
        clock: the time.
    """
    invocation = Invocation(opener, clock)
    # Asked for anywhere before the command of a sandbox begins, since a usage error ends the parsing early.
    before = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    try:
        try:
            result = _invoke(arguments, invocation)
            sys.stdout.flush()
            return result
        finally:
            invocation.close()
    except BrokenPipeError:
        drop_output()
        return _BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Terminated as ended:
        return SIGNAL_BASE + ended.signal
    except Exception as error:
        return report(_as_flux_error(error), as_json="--json" in before)


def _invoke(arguments: Sequence[str], invocation: Invocation) -> int:
    if COMPLETION in os.environ:
        root.main(list(arguments), prog_name=PROGRAM, complete_var=COMPLETION, obj=invocation)
    try:
        with root.make_context(PROGRAM, list(arguments), obj=invocation) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_CODES[Code.INVALID]
    return result if isinstance(result, int) else 0


def _as_flux_error(error: Exception) -> FluxError:
    if isinstance(error, FluxError):
        return error
    if isinstance(error, click.ClickException):
        return FluxError(Code.INVALID, _usage(error))
    if os.environ.get("FLUX_DEBUG"):
        raise error
    described = printable(f"{type(error).__name__}: {error}")
    return FluxError(
        Code.INTERNAL, f"cannot finish: {described}; this is a defect; FLUX_DEBUG=1 shows where it happened"
    )


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".").removesuffix("?")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    if isinstance(error, click.NoSuchOption) and context is not None and _takes_command(context.command):
        message += " of fluxctl; the command to run comes after --"
    return f"cannot understand the command line: {message[:1].lower()}{message[1:]}; see: {path} --help"


def _takes_command(command: click.Command) -> bool:
    return any(parameter.name == "words" for parameter in command.params)
