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
``--period SECONDS`` lets the node's own work come round so often, instead of every minute or so. ``--serve-manager``
lets a test talk to the node's manager over gRPC also where the control plane is in the same process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flux import failpoints
from flux.app.clock import SystemClock
from flux.core.errors import Code, FluxError
from flux.failpoints import Point

if TYPE_CHECKING:
    from flux.app.addresses import Address
    from flux.app.config import Config
    from flux.app.roles import Runtime

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


def set_period(seconds: float) -> None:
    """Let the node look for work of its own so often."""
    from flux.app import roles

    roles._SWEEP_SECONDS = roles._RECONCILE_SECONDS = roles._UPLOAD_SECONDS = seconds


def serve_manager() -> None:
    """Serve the node's manager in every role that has one."""
    from flux.app import daemon

    as_node = daemon._manager

    def manager(
        held: ExitStack, runtime: Runtime, address: Address, settings: Config, options: daemon.Options
    ) -> dict[str, str]:
        return as_node(held, runtime, address, settings, msgspec.structs.replace(options, role="node"))

    daemon._manager = manager


def _taken(option: str, values: int = 1) -> list[str] | None:
    """Take an option that ``fluxd`` itself does not know, with its values, from the command line."""
    if option not in sys.argv:
        return None
    at = sys.argv.index(option)
    _, *found = sys.argv[at : at + 1 + values]
    del sys.argv[at : at + 1 + values]
    return found


def main() -> None:
    """Arm the faults, set the clock and the rest, then be ``fluxd``."""
    from flux.app.fluxd import main as fluxd

    if (clock := _taken("--clock")) is not None:
        set_clock(Path(clock[0]))
    if (period := _taken("--period")) is not None:
        set_period(float(period[0]))
    if _taken("--serve-manager", 0) is not None:
        serve_manager()
    faults = _taken("--faults")
    with failpoints.armed(Faults(Path(faults[0]))) if faults is not None else nullcontext():
        fluxd()


if __name__ == "__main__":
    main()
