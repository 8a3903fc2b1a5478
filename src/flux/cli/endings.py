"""The exit code of ``fluxctl`` that tells how a command in a sandbox ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flux.cli.errors import SIGNAL_BASE, TIMED_OUT


def exit_status(reply: Mapping[str, Any]) -> int:
    """Return the command's exit code, 128 plus its signal, or 124 if its time-out ended it, as ``timeout(1)`` does."""
    if reply.get("timed_out"):
        return TIMED_OUT
    if reply.get("signal") is not None:
        return SIGNAL_BASE + int(reply["signal"])
    return int(reply.get("exit_code") or 0)
