"""A small explorer: several processes over one object store, a call at a time, in every order with few switches.

A process runs in a thread of its own, but only one moves: before each call to the store it stops, and the explorer says
who goes on. A schedule is the list of choices; after a run, each point at which another choice was possible begins new
schedules, as long as they take at most so many choices against the running process. A process may also be killed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flux.testing.objects import FakeObjectStore, Method


class Killed(BaseException):
    """Ends a process as ``kill -9`` does: nothing that it does afterwards reaches the store."""


class Choice(NamedTuple):
    """Let a process do its next call, or kill it there."""

    process: int
    kill: bool = False


class Process:
    """One process. ``outcome``: what its action returned or raised; ``None`` while it runs or if it was killed."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._killed = False
        self.over = False
        self.outcome: object = None

    def start(self) -> None:
        """Run up to the first call."""
        self._thread.start()
        self._stopped.acquire()

    def is_current(self) -> bool:
        """Tell whether the calling thread is this process's."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Wait until the explorer says that it goes on. Called by the process."""
        if self._killed:
            raise Killed
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def move(self, *, kill: bool) -> None:
        """Let it do its next call, up to the one after, or kill it. Called by the explorer."""
        self._killed = kill
        self._go.release()
        self._stopped.acquire()

    def _run(self) -> None:
        try:
            self.stop()
            self.outcome = self._action()
        except Killed:
            pass
        except Exception as error:
            self.outcome = error
        self.over = True
        self._stopped.release()


class Case(NamedTuple):
    """One world to run: its store, its processes, and what must hold when all have ended."""

    store: FakeObjectStore
    processes: Sequence[Process]
    check: Callable[[], object]


def explore(build: Callable[[], Case], switches: int, *, kills: bool = False) -> int:
    """Run every schedule with at most ``switches`` choices against the running process; return how many there were."""
    pending: list[tuple[Choice, ...]] = [()]
    runs = 0
    while pending:
        schedule = pending.pop()
        runs += 1
        case = build()
        trace = _run(case, schedule)
        try:
            case.check()
        except BaseException as error:
            error.add_note(f"schedule: {[tuple(choice) for choice, _ in trace]}\ncalls: {case.store.calls}")
            raise
        pending += _others([choice for choice, _ in trace], [able for _, able in trace], len(schedule), switches, kills)
    return runs


def _run(case: Case, schedule: Sequence[Choice]) -> list[tuple[Choice, tuple[int, ...]]]:
    """Run a case, first by the schedule, then always the same process; return the choices and who else could have."""

    def stop(method: Method, key: str) -> None:
        for process in case.processes:
            if process.is_current():
                process.stop()

    case.store.before = stop
    for process in case.processes:
        process.start()
    trace: list[tuple[Choice, tuple[int, ...]]] = []
    last = 0
    while able := tuple(number for number, process in enumerate(case.processes) if not process.over):
        choice = schedule[len(trace)] if len(trace) < len(schedule) else Choice(last if last in able else able[0])
        assert choice.process in able, f"a run is not like the one before it: {schedule}"
        trace.append((choice, able))
        case.processes[choice.process].move(kill=choice.kill)
        last = choice.process
    case.store.before = lambda method, key: None
    return trace


def _others(
    choices: list[Choice], able: list[tuple[int, ...]], begin: int, switches: int, kills: bool
) -> Iterator[tuple[Choice, ...]]:
    for at in range(begin, len(choices)):
        for number in able[at]:
            for choice in (Choice(number), Choice(number, kill=True))[: 2 if kills else 1]:
                schedule = (*choices[:at], choice)
                if choice != choices[at] and _cost(schedule, able) <= switches:
                    yield schedule


def _cost(schedule: tuple[Choice, ...], able: list[tuple[int, ...]]) -> int:
    """Count the choices against the process that ran before and could have gone on, and the kills."""
    cost = sum(choice.kill for choice in schedule)
    for at in range(1, len(schedule)):
        before = schedule[at - 1].process
        cost += schedule[at].process != before and before in able[at]
    return cost + (bool(schedule) and schedule[0].process != 0)
