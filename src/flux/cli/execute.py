"""``fluxctl sandbox exec`` and ``shell``: commands in the real sandbox, with their streams passed through."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

import click
import msgspec

from flux.cli.commands import (
    Command,
    command_argument,
    pass_invocation,
    run_fields,
    run_options,
    sandbox_argument,
)
from flux.cli.endings import exit_status
from flux.cli.errors import TIMED_OUT
from flux.cli.invocation import Invocation, write_json
from flux.core.errors import Code, FluxError
from flux.core.requests import Exec

_SHELL = "if command -v bash >/dev/null; then exec bash; else exec sh; fi"


@click.command("exec", cls=Command)
@sandbox_argument
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin on, also when it is a terminal.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal; needs one at stdin.")
@run_options
@command_argument
@pass_invocation
def exec_(invocation: Invocation, sandbox: str, interactive: bool, tty: bool, **run: Any) -> int:
    """Run a command in the real sandbox; what it changes is changed.

    Ends with the command's own exit code, 128 plus the signal that ended it, or 124 if its time-out did. With --json
    the output is captured and printed as one object.
    """
    request = Exec(**run_fields(**run))
    if tty and not os.isatty(0):
        raise FluxError(Code.INVALID, "cannot give the command a terminal: stdin is not one; leave out -t")
    attached = interactive or tty or not os.isatty(0)
    if invocation.json_asked:
        return _captured(invocation, sandbox, request, attached=attached)
    return _streamed(invocation, sandbox, request, attached=attached, terminal=tty)


@click.command(cls=Command)
@sandbox_argument
@click.option("--user", metavar="NAME", help="User inside the sandbox.")
@pass_invocation
def shell(invocation: Invocation, sandbox: str, user: str | None) -> int:
    """Open a shell in the real sandbox."""
    request = Exec(command=_SHELL, user=user)
    return _streamed(invocation, sandbox, request, attached=True, terminal=os.isatty(0))


def _captured(invocation: Invocation, sandbox: str, request: Exec, *, attached: bool) -> int:
    if attached:
        request.stdin_base64 = base64.b64encode(sys.stdin.buffer.read()).decode("ascii")
    reply = invocation.call("sandbox.exec", sandbox=sandbox, body=request)
    write_json(reply)
    return exit_status(reply)


def _streamed(invocation: Invocation, sandbox: str, request: Exec, *, attached: bool, terminal: bool) -> int:
    ended = invocation.session.client().run(
        sandbox, request, stdin=0 if attached else None, stdout=1, stderr=2, terminal=terminal
    )
    status = exit_status(msgspec.structs.asdict(ended))
    if status == TIMED_OUT and ended.timed_out:
        sys.stderr.write(f"fluxctl: the command was killed after {ended.duration_ms / 1000:.1f} s: its time-out\n")
    return status
