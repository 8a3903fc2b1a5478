"""Having ``nft`` do something, here or in another network namespace.

By the program, although its library would hold nobody up: what that does not expect it answers by ending the process.
"""

from __future__ import annotations

from flux.core.errors import Code, FluxError
from flux.network import namespaces

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
TOOLS = ("nft",)


def missing_tools() -> list[str]:
    """Return the programs that are not installed."""
    import shutil

    return [tool for tool in TOOLS if shutil.which(tool, path=_PLACES) is None]


def nft(text: str, *, namespace: int | None = None, json: bool = False, check: bool = False) -> str:
    """Carry out commands of ``nft``, all or none, and return its output.

    Args:
        text: the commands.
        namespace: a descriptor of the network namespace that they are about; ``None`` for the caller's.
        json: have the output as JSON with numbers in place of names.
        check: only find out whether they could be carried out.

    Raises:
        FluxError: ``unavailable`` with what it complained of.
    """
    try:
        done, output, complaint = namespaces.inside(namespace, lambda: _start(text, json, check))
    except OSError as error:
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: nft: {error}") from error
    if not done:
        reason = " ".join(complaint.split())[:300] or "it failed without a word"
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: nft: {reason}")
    return output


def _start(text: str, json: bool, check: bool) -> tuple[bool, str, str]:
    import subprocess

    environment = {"PATH": _PLACES, "LC_ALL": "C"}
    # A listing is not printed for commands that come from a file.
    command = ["nft", "-n", "-j", text] if json else ["nft", *(["--check"] if check else []), "-f", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, check=False)
    return done.returncode == 0, done.stdout, done.stderr
