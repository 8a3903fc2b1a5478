"""The program ``fluxctl``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from flux.app.clock import SystemClock
from flux.app.open import open_session
from flux.cli.main import Terminated, run


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    _hold_standard_descriptors()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # left alone under nohup
            signal.signal(number, _terminate)
    code = run(sys.argv[1:], open_session, SystemClock())
    # Everything is closed by now; taking the interpreter apart would take a tenth of a short command's time.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _hold_standard_descriptors() -> None:
    """Open what the caller closed of stdin, stdout and stderr, or a file of ours would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free number is taken, and those before it are held by now.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
