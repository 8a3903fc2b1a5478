"""Writing to a process: as fast as it reads, one caller after the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import CancelScope, Lock, notify_closing, wait_writable

from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from flux.engine.lifecycle.execute import RunningExec


class Input:
    """The writing end of a process's input; a terminal's is shared with its output, and stays open for it."""

    def __init__(self, running: RunningExec) -> None:
        self.terminal = running.terminal is not None
        self._descriptor = running.terminal if self.terminal else running.stdin
        self._turn = Lock()
        self._waiting: CancelScope | None = None
        if self._descriptor is not None:
            os.set_blocking(self._descriptor, False)

    async def write(self, data: bytes) -> None:
        """Write all of ``data``.

        Raises:
            FluxError: ``illegal_state`` if the input is closed, or if nobody reads it any more.
        """
        async with self._turn:
            view = memoryview(data)
            while view or self._descriptor is None:
                if self._descriptor is None:
                    raise FluxError(
                        Code.ILLEGAL_STATE, "cannot write to the process: its input is closed, or was never open"
                    )
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    await self._wait(self._descriptor)
                except OSError:
                    self.close()

    async def _wait(self, descriptor: int) -> None:
        with CancelScope() as scope:
            self._waiting = scope
            await wait_writable(descriptor)
        self._waiting = None

    def close(self) -> None:
        """Write no more. A pipe's end is closed with it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._waiting is not None:
            self._waiting.cancel()
        if not self.terminal:
            notify_closing(descriptor)
            os.close(descriptor)
