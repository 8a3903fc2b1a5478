"""Reading what processes write: at the pace of who listens, and dropped where nobody does."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from anyio import CancelScope, sleep, wait_readable

from flux.api.envd.hub import Hub, Output, Piece

__all__ = ["Output", "Tap", "drop"]

READ_BYTES = 64 * 1024
_DROP_BYTES = 256 * 1024
#: A process that floods a pipe to which nobody listens gets on with it, but not at the cost of everybody else.
_DROP_PAUSE_SECONDS = 0.004
#: What is still read once the process has ended: all that a pipe can hold. More is a background process's.
_AFTER_END_BYTES_MAX = 1024 * 1024
#: How many outputs of ended processes are kept open for what they left running; beyond, writing to one breaks.
_DROPPED_MAX = 1024


class Tap:
    """Reads one descriptor until its end, or until the process has ended and nothing is left in it.

    The descriptor stays open; ``drop`` closes it.
    """

    def __init__(self, descriptor: int, output: Output, hub: Hub) -> None:
        self.descriptor = descriptor
        self._output = output
        self._hub = hub
        self._waiting: CancelScope | None = None
        self._left_after_end: int | None = None
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # a terminal, or no more room for pipes: the usual size does
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _DROP_BYTES)

    def process_ended(self) -> None:
        """Read only what is already there."""
        self._left_after_end = _AFTER_END_BYTES_MAX
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Pass everything on."""
        while self._left_after_end is None or self._left_after_end > 0:
            heard = self._hub.heard
            data = read(self.descriptor, READ_BYTES if heard else _DROP_BYTES)
            if data == b"" or (data is None and self._left_after_end is not None):
                return
            if data is None:
                await self._wait()
                continue
            if self._left_after_end is not None:
                self._left_after_end -= len(data)
            if heard:
                await self._hub.publish(Piece(self._output, data))
            else:
                await _pause(data)

    async def _wait(self) -> None:
        with CancelScope() as scope:
            self._waiting = scope
            await wait_readable(self.descriptor)
        self._waiting = None


def read(descriptor: int, most: int) -> bytes | None:
    """Return what is there, nothing at the end, ``None`` if more may come."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None
    except OSError:
        # How a terminal tells that nobody holds its other side any more.
        return b""


async def _pause(dropped: bytes) -> None:
    """Let others have their turn after every piece: a writer that keeps up leaves nothing else to wait for."""
    await sleep(_DROP_PAUSE_SECONDS if len(dropped) > READ_BYTES else 0)


_dropping = 0


async def drop(descriptor: int) -> None:
    """Read and forget what a process left in the background writes, until nobody does any more; then close."""
    global _dropping  # descriptors are the whole process's
    _dropping += 1
    try:
        while _dropping <= _DROPPED_MAX and (data := read(descriptor, _DROP_BYTES)) != b"":
            if data is None:
                await wait_readable(descriptor)
            else:
                await _pause(data)
    finally:
        _dropping -= 1
        os.close(descriptor)
