"""Running ``nft``, here or in another network namespace."""

from __future__ import annotations

from flux.core.errors import Code, FluxError
from flux.network import namespaces

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
TOOLS = ("nft",)


def missing_tools() -> list[str]:
    """Return the programs that are not installed."""
    import shutil

    return [tool for tool in TOOLS if shutil.which(tool, path=_PLACES) is None]


def run(*command: str, text: str = "", namespace: int | None = None) -> str:
    """Run a program and return its output.

    Args:
        command: the program and its arguments.
        text: what it reads.
        namespace: a descriptor of the network namespace to run in; ``None`` for the caller's.

    Raises:
        FluxError: ``unavailable`` with what the program complained of.
    """
    import subprocess

    def start() -> subprocess.CompletedProcess[str]:
        surroundings = {"PATH": _PLACES, "LC_ALL": "C"}
        return subprocess.run(command, input=text, capture_output=True, text=True, env=surroundings, check=False)

    try:
        done = namespaces.inside(namespace, start)
    except OSError as error:
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: {command[0]}: {error}") from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: {command[0]}: {reason}")
    return done.stdout
