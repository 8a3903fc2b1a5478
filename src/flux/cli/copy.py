"""``fluxctl sandbox cp``: one file in or out."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import BinaryIO

import click

from flux.cli.commands import Command, pass_invocation
from flux.cli.invocation import Invocation
from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

_INSIDE = re.compile(r"^([^/:]+):(/.*)$", re.DOTALL)
_STANDARD = "-"


@click.command("cp", cls=Command)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@pass_invocation
def copy(invocation: Invocation, source: str, target: str) -> None:
    """Copy one file into a sandbox or out of it.

    The side inside is written SB:/path, stdin or stdout as -. A target that is a directory outside, or ends with /
    inside, is where a file of the source's name goes.
    """
    inside_source, inside_target = _INSIDE.match(source), _INSIDE.match(target)
    if (inside_source is None) == (inside_target is None):
        raise FluxError(
            Code.INVALID,
            "cannot copy: exactly one of SRC and DST must be inside a sandbox; write that one as SB:/path",
        )
    if inside_source is not None:
        size = _out(invocation, inside_source[1], inside_source[2], target)
    elif inside_target is not None:
        size = _in(invocation, source, inside_target[1], inside_target[2])
    if target != _STANDARD:
        reply = {"source": paths.to_json(source)[0], "target": paths.to_json(target)[0], "size": size}
        invocation.emit(reply, lambda console, item: console.print(f"Copied {item['size']} bytes."))


def _out(invocation: Invocation, sandbox: str, path: str, target: str) -> int:
    client = invocation.session.client()
    if target == _STANDARD:
        return client.read_file(sandbox, path, sys.stdout.buffer)
    if os.path.isdir(target):
        target = os.path.join(target, paths.name(path))
    try:
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            with open(target, "wb") as stream:  # noqa: PTH123 - pathlib is slow to import
                return client.read_file(sandbox, path, stream)
        return _replaced(target, lambda stream: client.read_file(sandbox, path, stream))
    except OSError as error:
        raise _local(error, f"cannot write {printable(target)}") from error


def _replaced(target: str, fill: Callable[[BinaryIO], int]) -> int:
    """Fill a new file beside ``target`` and put it in its place when it is whole."""
    place = os.path.realpath(target)
    mode = stat.S_IMODE(os.stat(place).st_mode) if os.path.exists(place) else 0o666 & ~_umask()
    descriptor, partial = tempfile.mkstemp(prefix=".flux-", dir=os.path.dirname(place))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            size = fill(stream)
        os.chmod(partial, mode)
        os.replace(partial, place)
    except BaseException:
        os.unlink(partial)
        raise
    return size


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _in(invocation: Invocation, source: str, sandbox: str, path: str) -> int:
    if path.endswith("/"):
        if source == _STANDARD:
            raise FluxError(Code.INVALID, "cannot copy stdin into a directory: name the file to write")
        path += os.path.basename(source)
    client = invocation.session.client()
    if source == _STANDARD:
        return int(client.write_file(sandbox, path, sys.stdin.buffer)["size"])
    try:
        with open(source, "rb") as stream:  # noqa: PTH123 - pathlib is slow to import
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            return int(client.write_file(sandbox, path, stream, mode & 0o777)["size"])
    except IsADirectoryError as error:
        raise FluxError(
            Code.INVALID,
            f"cannot copy {printable(source)}: it is a directory; pipe a tar archive through fluxctl sandbox exec",
        ) from error
    except OSError as error:
        raise _local(error, f"cannot read {printable(source)}") from error


def _local(error: OSError, what: str) -> FluxError:
    code = Code.NOT_FOUND if isinstance(error, FileNotFoundError) else Code.DENIED
    return FluxError(code, f"{what}: {(error.strerror or str(error)).lower()}")
