"""``fluxd`` with failpoints armed from a file, for tests of processes: ``python -m flux.testing.fluxd --faults FILE``.

The program that ships knows nothing of this. ``FILE`` is read anew at every point that is reached, so that a test arms
and disarms while the daemon runs. Each line is ``POINT SANDBOX|* TIMES ACTION``, with an action of

``error``
    the step fails with ``internal``; ``error:CODE`` with another code;
``kill``
    the process ends as by ``kill -9``;
``hold``
    the step waits until the line is gone from the file.

``TIMES`` is how often the line acts. Every point that a line acted at is appended to ``FILE.reached``, before it acts.

``--clock FILE`` sets the daemon's wall clock: as many seconds as the file says beside the machine's, read at each look.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec

from flux import failpoints
from flux.app.clock import SystemClock
from flux.core.errors import Code, FluxError
from flux.failpoints import Point

_POLL_SECONDS = 0.01


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file. ``sandbox``: an id, or ``*``."""

    point: Point
    sandbox: str
    times: int
    action: str
    line: str

    def concerns(self, point: Point, sandbox: str) -> bool:
        """Tell whether it acts at this point of this sandbox's operation."""
        return self.point is point and self.sandbox in ("*", sandbox)


def parse(text: str) -> list[Fault]:
    """Return the faults of a file's text; an unknown point is an error of the test."""
    return [_fault(line) for line in text.splitlines() if line.strip()]


def _fault(line: str) -> Fault:
    point, sandbox, times, action = line.split()
    return Fault(point=Point(point), sandbox=sandbox, times=int(times), action=action, line=line)


class Faults:
    """The action of armed failpoints.

    Args:
        file: where the faults stand; absent: there are none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}

    def __call__(self, point: Point) -> None:
        """Act, if a line says so."""
        for fault in self._read():
            if fault.concerns(point, failpoints.subject()) and self._take(fault):
                self._act(fault)

    def _read(self) -> list[Fault]:
        try:
            return parse(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []

    def _take(self, fault: Fault) -> bool:
        with self._lock:
            used = self._used.get(fault.line, 0)
            if used >= fault.times:
                return False
            self._used[fault.line] = used + 1
            with self._file.with_name(self._file.name + ".reached").open("a", encoding="utf-8") as log:
                log.write(f"{fault.point.value} {failpoints.subject()}\n")
            return True

    def _act(self, fault: Fault) -> None:
        action, _, code = fault.action.partition(":")
        if action == "error":
            raise FluxError(Code(code or "internal"), f"cannot go on: a test made {fault.point.value} fail")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while action == "hold" and fault.line in (other.line for other in self._read()):
            time.sleep(_POLL_SECONDS)


def set_clock(file: Path) -> None:
    """Let this process's wall clock be beside the machine's by what the file says, if it is there."""
    machine = SystemClock.wall

    def wall(clock: SystemClock) -> float:
        try:
            return machine(clock) + float(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return machine(clock)

    SystemClock.wall = wall  # type: ignore[assignment, method-assign]


def _taken(option: str) -> Path | None:
    """Take an option that ``fluxd`` itself does not know, with its value, from the command line."""
    if option not in sys.argv:
        return None
    at = sys.argv.index(option)
    _, value = sys.argv[at : at + 2]
    del sys.argv[at : at + 2]
    return Path(value)


def main() -> None:
    """Arm the faults, set the clock, then be ``fluxd``."""
    from flux.app.fluxd import main as fluxd

    faults, clock = _taken("--faults"), _taken("--clock")
    if clock is not None:
        set_clock(clock)
    with failpoints.armed(Faults(faults)) if faults is not None else nullcontext():
        fluxd()


if __name__ == "__main__":
    main()
