"""Having ``nft`` do something, here or in another network namespace: by its library, or by the program without it.

To start a program from a large process holds all of its threads up for a moment; a call of the library none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flux.core.errors import Code, FluxError
from flux.network import namespaces

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_LIBRARY = "libnftables.so.1"
_JSON, _NUMERIC = 1 << 4, 0xF << 7
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
    library = _library()

    def act() -> tuple[bool, str, str]:
        return _start(text, json, check) if library is None else _call(library, text, json, check)

    try:
        done, output, complaint = namespaces.inside(namespace, act)
    except OSError as error:
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: nft: {error}") from error
    if not done:
        reason = " ".join(complaint.split())[:300] or "it failed without a word"
        raise FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: nft: {reason}")
    return output


@cache
def _library() -> Any:
    """Return the library, if this machine has it."""
    import ctypes

    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    library.nft_ctx_new.restype = ctypes.c_void_p
    for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def _call(library: Any, text: str, json: bool, check: bool) -> tuple[bool, str, str]:
    import ctypes

    context = ctypes.c_void_p(library.nft_ctx_new(0))
    if not context:
        return False, "", "it could not begin"
    try:
        library.nft_ctx_buffer_output(context)
        library.nft_ctx_buffer_error(context)
        library.nft_ctx_output_set_flags(context, ctypes.c_uint(_JSON | _NUMERIC if json else 0))
        library.nft_ctx_set_dry_run(context, ctypes.c_bool(check))
        done = library.nft_run_cmd_from_buffer(context, text.encode("ascii")) == 0
        output = library.nft_ctx_get_output_buffer(context) or b""
        complaint = library.nft_ctx_get_error_buffer(context) or b""
        return done, output.decode("utf-8", "replace"), complaint.decode("utf-8", "replace")
    finally:
        library.nft_ctx_free(context)


def _start(text: str, json: bool, check: bool) -> tuple[bool, str, str]:
    import subprocess

    environment = {"PATH": _PLACES, "LC_ALL": "C"}
    # A listing is not printed for commands that come from a file.
    command = ["nft", "-n", "-j", text] if json else ["nft", *(["--check"] if check else []), "-f", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, check=False)
    return done.returncode == 0, done.stdout, done.stderr
