"""The watchers of executions: some push what happens into a stream, others keep it until they are asked."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyio import CancelScope, Lock, create_task_group, current_time, move_on_at, wait_readable

from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from flux.api.envd.call import Call
    from flux.engine.filesystem.watch import Watch, WatchEvent

PER_EXECUTION_MAX = 64
EVENTS_MAX = 20_000
IDLE_SECONDS = 3600.0


async def readable(watch: Watch) -> bool:
    """Wait until there is something to read; ``False`` when the execution has ended."""
    ended = False

    async def until_ended() -> None:
        nonlocal ended
        await wait_readable(watch.end_descriptor)
        ended = True
        group.cancel_scope.cancel()

    async with create_task_group() as group:
        group.start_soon(until_ended)
        await wait_readable(watch.descriptor)
        group.cancel_scope.cancel()
    return not ended


def ended() -> FluxError:
    """Return the error for a watch whose execution has ended."""
    return FluxError(Code.UNAVAILABLE, "cannot watch on: the sandbox was paused or ended; watch again when it runs")


class Watcher:
    """A watch that keeps what happened until it is asked for."""

    def __init__(self, call: Call, watch: Watch, *, entries: bool) -> None:
        self.touched = current_time()
        self._threads = call.threads
        self._watch = watch
        self._entries = entries
        self._turn = Lock()
        self._events: list[WatchEvent] = []
        self._failure: FluxError | None = None
        self._closed = False
        self._life = CancelScope()

    async def taken(self) -> list[WatchEvent]:
        """Return what happened since the last time.

        Raises:
            FluxError: ``exhausted`` if some of it was lost; the watcher is of no more use.
        """
        self.touched = current_time()
        await self._read()
        events, self._events = self._events, []
        if self._failure is not None and not events:
            raise self._failure
        return events

    async def _read(self) -> None:
        async with self._turn:
            if self._failure is not None or self._closed:
                return
            try:
                self._events += await self._threads.slow(lambda: self._watch.read(entries=self._entries))
            except FluxError as error:
                self._failure = error
                return
            if len(self._events) > EVENTS_MAX:
                del self._events[EVENTS_MAX:]
                self._failure = FluxError(
                    Code.EXHAUSTED,
                    f"cannot tell all that happened: more than {EVENTS_MAX} events were not asked for; list the "
                    "directory, and watch it anew",
                )

    async def run(self) -> None:
        """Keep what happens, until the execution ends, nobody has asked for long, or ``end`` is called."""
        with self._life:
            await self._keep()

    def end(self) -> None:
        """Have ``run`` return; what is being read is read to its end before."""
        self._life.cancel()

    async def _keep(self) -> None:
        while self._failure is None and current_time() < self.touched + IDLE_SECONDS:
            with move_on_at(self.touched + IDLE_SECONDS) as bound:
                if not await readable(self._watch):
                    return
            if not bound.cancelled_caught:
                await self._read()
        with move_on_at(self.touched + IDLE_SECONDS):
            await wait_readable(self._watch.end_descriptor)

    async def close(self) -> None:
        """End the watch."""
        async with self._turn:
            self._closed = True
            self._watch.close()


class WatchTable:
    """All watchers of this daemon."""

    def __init__(self) -> None:
        self._watchers: dict[tuple[str, str], Watcher] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def counted(self, execution: str) -> Iterator[Callable[[], None]]:
        """Count one more watch of an execution while the block lasts, or until what it yields is told to keep it.

        Raises:
            FluxError: ``exhausted`` if there are too many.
        """
        if self._counts[execution] >= PER_EXECUTION_MAX:
            raise FluxError(
                Code.EXHAUSTED,
                f"cannot watch another directory: this sandbox has {PER_EXECUTION_MAX} watchers already; end some",
                {"limit": PER_EXECUTION_MAX},
            )
        self._counts[execution] += 1
        kept = False

        def keep() -> None:
            nonlocal kept
            kept = True

        try:
            yield keep
        finally:
            if not kept:
                self._discount(execution)

    def _discount(self, execution: str) -> None:
        self._counts[execution] -= 1
        if not self._counts[execution]:
            del self._counts[execution]

    def keep(self, call: Call, watch: Watch, *, entries: bool) -> str:
        """Keep a watch under an id, which is returned; the table closes it."""
        key = (call.sandbox, f"w{os.urandom(12).hex()}")
        self._watchers[key] = watcher = Watcher(call, watch, entries=entries)
        self._tasks[key] = asyncio.get_running_loop().create_task(self._attend(key, watcher))
        return key[1]

    async def _attend(self, key: tuple[str, str], watcher: Watcher) -> None:
        try:
            await watcher.run()
        finally:
            if self._watchers.pop(key, None) is not None:
                self._discount(key[0])
            self._tasks.pop(key, None)
            await watcher.close()

    def find(self, execution: str, watcher_id: str) -> Watcher:
        """Return a watcher. Raises ``not_found``."""
        watcher = self._watchers.get((execution, watcher_id))
        if watcher is None:
            raise _missing(watcher_id)
        return watcher

    async def remove(self, execution: str, watcher_id: str) -> None:
        """End a watcher. Raises ``not_found``."""
        self.find(execution, watcher_id).end()
        await asyncio.wait([self._tasks[execution, watcher_id]])


def _missing(watcher_id: str) -> FluxError:
    return FluxError(Code.NOT_FOUND, f"cannot find the watcher {watcher_id[:80]!r}: it ended, or was of another run")
