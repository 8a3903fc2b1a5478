"""The processes that callers of a data plane started: by execution, found by pid or tag (spec: e2b, §4).

A process belongs to its execution, not to whoever started it: callers come and go as listeners. All of this lives in
the event loop; only starts, ends and kills are waited for in threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import CapacityLimiter, to_thread

from flux.api.envd.hub import Hub
from flux.api.envd.input import Input
from flux.api.envd.outputs import Output, Tap, drop
from flux.core.errors import Code, FluxError
from flux.engine.results import Ended

if TYPE_CHECKING:
    from flux.api.envd.call import Call
    from flux.core.requests import StartProcess
    from flux.engine.lifecycle.execute import RunningExec
    from flux.engine.results import TerminalSize

PER_SANDBOX_MAX = 256
PER_DAEMON_MAX = 1000
#: How many ended processes are remembered, and how long, for a caller that comes late.
REMEMBERED_MAX = 2048
REMEMBERED_SECONDS = 600.0


class Selector(msgspec.Struct, frozen=True):
    """Names one process of an execution: by pid, or by the tag that it was started with."""

    pid: int | None = None
    tag: str | None = None

    def names(self, process: Process | Remembered) -> bool:
        """Tell whether it is this one."""
        return process.pid == self.pid or (self.pid is None and process.tag == self.tag)


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A process that ended by itself, for a caller that comes late; forgotten ``until`` a time of the event loop."""

    pid: int
    tag: str | None
    ended: Ended
    until: float


class Process:
    """One process. ``ended`` is set when it is over; ``lost`` then says that its execution ended with it."""

    def __init__(self, running: RunningExec, request: StartProcess, tag: str | None) -> None:
        self.running = running
        self.request = request
        self.tag = tag
        self.pid = running.pid
        self.hub = Hub()
        self.input = Input(running)
        self.ended: Ended | None = None

    @property
    def lost(self) -> bool:
        """Whether it ended because its execution did."""
        return self.running.lost

    def resize(self, size: TerminalSize) -> None:
        """Tell its terminal the new size."""
        if self.ended is None:  # afterwards the descriptor may be another's
            self.running.resize(size)

    def taps(self) -> list[Tap]:
        """Return what reads its output."""
        running = self.running
        named: list[tuple[int | None, Output]] = [(running.stdout, "stdout"), (running.stderr, "stderr")]
        if running.terminal is not None:
            named = [(running.terminal, "pty")]
        return [Tap(descriptor, name, self.hub) for descriptor, name in named if descriptor is not None]


class ProcessTable:
    """All processes of this daemon that are under a data plane's care."""

    def __init__(self) -> None:
        self._living: dict[str, dict[int, Process]] = {}
        self._starting: defaultdict[str, int] = defaultdict(int)
        self._over: OrderedDict[tuple[str, int], Remembered] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = CapacityLimiter(PER_DAEMON_MAX)

    async def start(
        self, call: Call, request: StartProcess, terminal: TerminalSize | None, tag: str | None, *, stdin: bool
    ) -> Process:
        """Start a process. Who wants all of its output listens before anything else happens (``Hub.listen``).

        Raises:
            FluxError: ``invalid`` for a program, directory or user that is not there; ``exhausted`` if there are too
                many; ``unavailable`` if the sandbox stopped meanwhile.
        """
        self._refuse_too_many(call.sandbox)
        self._starting[call.sandbox] += 1
        try:
            running = await call.threads.slow(call.plane.start_process, call.actor, call.sandbox, request, terminal)
        finally:
            self._starting[call.sandbox] -= 1
            if not self._starting[call.sandbox]:
                del self._starting[call.sandbox]
        process = Process(running, request, tag)
        if not stdin and terminal is None:
            process.input.close()
        self._living.setdefault(call.sandbox, {})[process.pid] = process
        self._over.pop((call.sandbox, process.pid), None)
        self._spawn(self._attend(call, process))
        if call.deadline is not None:
            self._expire_at(call, process, call.deadline)
        return process

    def living(self, execution: str) -> list[Process]:
        """Return the processes of an execution that run."""
        return list(self._living.get(execution, {}).values())

    def find(self, execution: str, selector: Selector) -> Process:
        """Return a process that runs.

        Raises:
            FluxError: ``not_found``; ``invalid`` if none is named.
        """
        if selector.pid is None and selector.tag is None:
            raise FluxError(Code.INVALID, "cannot tell which process: give its pid or its tag")
        for process in reversed(self.living(execution)):
            if selector.names(process):
                return process
        named = f"with pid {selector.pid}" if selector.pid is not None else f"tagged {str(selector.tag)[:80]!r}"
        raise FluxError(Code.NOT_FOUND, f"cannot find the process {named}: it ended, or never was; list them to see")

    def find_over(self, execution: str, selector: Selector) -> Remembered | None:
        """Return what is remembered of a process that ended lately, if it is."""
        self._forget_old()
        for (where, _), remembered in reversed(self._over.items()):
            if where == execution and selector.names(remembered):
                return remembered
        return None

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._over and (len(self._over) > REMEMBERED_MAX or next(iter(self._over.values())).until <= now):
            self._over.popitem(last=False)

    async def kill(self, call: Call, process: Process) -> None:
        """Kill a process and everything that came from it; return when all are dead."""
        await call.threads.end(process.running.kill)

    def _refuse_too_many(self, execution: str) -> None:
        here = len(self._living.get(execution, ())) + self._starting.get(execution, 0)
        everywhere = sum(map(len, self._living.values())) + sum(self._starting.values())
        if here >= PER_SANDBOX_MAX or everywhere >= PER_DAEMON_MAX:
            most, where = (PER_SANDBOX_MAX, "this sandbox") if here >= PER_SANDBOX_MAX else (PER_DAEMON_MAX, "all")
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot start another process: {most} started by callers run in {where} already; end some first",
                {"limit": most},
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _expire_at(self, call: Call, process: Process, deadline: float) -> None:
        """Kill a process when the time of the call that started it is over, whether its caller is there or not."""

        def expire() -> None:
            if process.ended is None:
                self._spawn(self.kill(call, process))

        timer = asyncio.get_running_loop().call_at(deadline, expire)
        process.hub.when_over(timer.cancel)

    async def _attend(self, call: Call, process: Process) -> None:
        """See a process through: its output, its end, the release of what it held."""
        taps = process.taps()
        readers = [asyncio.get_running_loop().create_task(tap.run()) for tap in taps]
        try:
            process.ended = await to_thread.run_sync(process.running.wait, limiter=self._waits, abandon_on_cancel=True)
            self._forget(call.sandbox, process)
            process.input.close()
            # The sandbox is let go at once: a pause or a kill waits for its users, not for who reads slowly.
            self._spawn(call.threads.last(process.running.close))
            for tap in taps:
                tap.process_ended()
            await asyncio.gather(*readers)
        finally:
            process.hub.end()
            self._abandon(process, readers, taps)
            if process.ended is None:
                await call.threads.last(process.running.close)

    def _abandon(self, process: Process, readers: list[asyncio.Task[None]], taps: list[Tap]) -> None:
        process.input.close()
        for reader in readers:
            reader.cancel()
        for tap in taps:
            self._spawn(drop(tap.descriptor))

    def _forget(self, execution: str, process: Process) -> None:
        """Take a process off the living; one that ended by itself is remembered for a while."""
        known = self._living.get(execution, {})
        if known.get(process.pid) is process:
            del known[process.pid]
        if not known:
            self._living.pop(execution, None)
        if process.lost or process.ended is None:
            return
        until = asyncio.get_running_loop().time() + REMEMBERED_SECONDS
        key = (execution, process.pid)
        # Little of it, and no timer each: thousands may end within that time.
        self._over[key] = Remembered(pid=process.pid, tag=process.tag, ended=process.ended, until=until)
        self._over.move_to_end(key)
        self._forget_old()
