"""Carrying a running command's streams between descriptors and a connection, with back-pressure and nothing lost.

Whoever reads slowly slows the command down: output is read only when the last piece has been sent on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from anyio import BrokenResourceError, CancelScope, ClosedResourceError, create_task_group, wait_readable, wait_writable

from flux.engine.results import Ended

if TYPE_CHECKING:
    from flux.api.rest.threads import Threads
    from flux.engine.lifecycle.execute import RunningExec

Stream: TypeAlias = Literal["stdout", "stderr"]
Emit: TypeAlias = Callable[[Stream, bytes], Awaitable[None]]

_END_OF_INPUT = b"\x04"
READ_BYTES = 64 * 1024
#: What is still read once the command has ended: all that a pipe can hold. More is a background process's.
_AFTER_END_BYTES_MAX = 1024 * 1024


class _Tap:
    """Reads one descriptor until its end, or until the command has ended and nothing is left in it."""

    def __init__(self, descriptor: int, stream: Stream, emit: Emit) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._stream = stream
        self._emit = emit
        self._waiting: CancelScope | None = None
        self._left_after_end: int | None = None

    def command_ended(self) -> None:
        """Read only what is already there."""
        self._left_after_end = _AFTER_END_BYTES_MAX
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Emit everything."""
        while self._left_after_end is None or self._left_after_end > 0:
            data = self._read()
            if data == b"" or (data is None and self._left_after_end is not None):
                return
            if data is None:
                await self._wait()
                continue
            if self._left_after_end is not None:
                self._left_after_end -= len(data)
            await self._emit(self._stream, data)

    def _read(self) -> bytes | None:
        """Return what is there, nothing at the end, ``None`` if more may come."""
        try:
            return os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            # How a terminal tells that nobody holds its other side any more.
            return b""

    async def _wait(self) -> None:
        with CancelScope() as scope:
            self._waiting = scope
            await wait_readable(self._descriptor)
        self._waiting = None


class Carrier:
    """A running command with its streams; ``release`` must be called, whatever happens."""

    def __init__(self, running: RunningExec, threads: Threads) -> None:
        self.running = running
        self.input = Input(running)
        self._threads = threads

    async def carry(self, emit: Emit) -> Ended:
        """Emit the output as it comes; return how the command itself ended, after its last byte was emitted."""
        taps = [_Tap(descriptor, stream, emit) for descriptor, stream in self._outputs()]
        async with create_task_group() as group:
            for tap in taps:
                group.start_soon(tap.run)
            ended = await self._threads.end(self.running.wait)
            for tap in taps:
                tap.command_ended()
        return ended or _killed()

    def _outputs(self) -> list[tuple[int, Stream]]:
        running = self.running
        named: list[tuple[int | None, Stream]] = [(running.stdout, "stdout"), (running.stderr, "stderr")]
        if running.terminal is not None:
            named = [(running.terminal, "stdout")]
        return [(descriptor, stream) for descriptor, stream in named if descriptor is not None]

    async def release(self) -> None:
        """Kill the command if it still runs and let go of everything.

        What a command left running in the background may go on writing: it is read and dropped, so that it neither
        blocks nor dies of a broken pipe.
        """
        self.input.close()
        await self._threads.last(self.running.close)
        if self.running.terminal is not None:
            os.close(self.running.terminal)
        for descriptor in (self.running.stdout, self.running.stderr):
            if descriptor is not None:
                _drop(descriptor)


def _killed() -> Ended:
    return Ended(exit_code=None, signal=signal.SIGKILL, timed_out=False, duration_ms=0)


_dropping: set[asyncio.Task[None]] = set()


def _drop(descriptor: int) -> None:
    """Read and forget what comes, until nobody writes any more."""
    task = asyncio.get_running_loop().create_task(_dropped(descriptor))
    _dropping.add(task)
    task.add_done_callback(_dropping.discard)


async def _dropped(descriptor: int) -> None:
    try:
        while True:
            await wait_readable(descriptor)
            if not os.read(descriptor, READ_BYTES):
                return
    finally:
        os.close(descriptor)


class Input:
    """The writing end of a command's input. A command that reads no more makes it deaf, not an error."""

    def __init__(self, running: RunningExec) -> None:
        self._terminal = running.terminal is not None
        self._descriptor = running.terminal if self._terminal else running.stdin
        if self._descriptor is not None:
            os.set_blocking(self._descriptor, False)

    async def write(self, data: bytes) -> None:
        """Write all of ``data``, as fast as the command reads."""
        view = memoryview(data)
        try:
            while view and self._descriptor is not None:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    await wait_writable(self._descriptor)
        except (OSError, BrokenResourceError, ClosedResourceError):
            self.close()

    async def end(self) -> None:
        """Let the command see the end of its input; at a terminal by the character that means it."""
        if self._terminal:
            await self.write(_END_OF_INPUT)
        else:
            self.close()

    def close(self) -> None:
        """Write no more. A pipe's end is closed with it; a terminal stays, for its output. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and not self._terminal:
            os.close(descriptor)
