"""``fluxctl completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click

from flux.cli.commands import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    For bash: eval "$(fluxctl completion bash)".
    """
    from click.shell_completion import get_completion_class

    from flux.cli.main import COMPLETION, PROGRAM, root

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(root, {}, PROGRAM, COMPLETION).source())
