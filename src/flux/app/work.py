"""What a daemon does beside answering: uploads, reconciling, evictions, time-outs, inventories; a thread each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import structlog

from flux.core.errors import FluxError

_STOP_SECONDS = 10.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work. ``act`` does one round and tells whether there was anything to do: then the next is at once."""

    name: str
    act: Callable[[], object]
    every_seconds: float
    again_while_busy: bool = False


class Workers:
    """Runs tasks, each in a thread of its own, so that none of them ever runs twice at once."""

    def __init__(self, tasks: list[Task]) -> None:
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(task,), name=f"flux {task.name}", daemon=True) for task in tasks
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every round under way end, for some seconds; recovery puts right what was cut. Idempotent."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, task: Task) -> None:
        log = structlog.get_logger().bind(task=task.name)
        while not self._stopping.is_set():
            busy = self._round(task, log)
            if not (busy and task.again_while_busy):
                self._stopping.wait(task.every_seconds)

    def _round(self, task: Task, log: structlog.stdlib.BoundLogger) -> bool:
        began = time.monotonic()
        try:
            done = task.act()
        except FluxError as error:
            log.error("round", outcome=error.code.value, message=error.message)
            return False
        except Exception:
            log.exception("round", outcome="internal")
            return False
        if done:
            told = msgspec.to_builtins(done) if isinstance(done, msgspec.Struct | list | tuple) else done
            log.info("round", done=told, seconds=round(time.monotonic() - began, 3))
        return bool(done)
