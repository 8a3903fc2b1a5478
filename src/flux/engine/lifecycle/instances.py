"""The running executions of sandboxes: one live one per sandbox, and the throwaway ones of its runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Instance


class _Live(msgspec.Struct, eq=False):
    """A sandbox's own execution and how many calls use it."""

    starting: threading.Lock
    instance: Instance | None = None
    users: int = 0


class Instances:
    """Keeps executions so that deleting a sandbox, or closing the engine, leaves none.

    Args:
        persistent: live executions outlast the calls that use them (a daemon); else the last user ends them.
    """

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._throwaway: dict[str, list[Instance]] = defaultdict(list)
        self._closed = False

    @contextmanager
    def live(self, sandbox_id: str, start: Callable[[], Instance]) -> Iterator[Instance]:
        """Use a sandbox's own execution; ``start`` makes one if there is none, or if it ended on its own."""
        held = self.acquire(sandbox_id, start)
        try:
            yield held
        finally:
            self.release(sandbox_id)

    def acquire(self, sandbox_id: str, start: Callable[[], Instance]) -> Instance:
        """Do what ``live`` does for a use that outlasts a block; ``release`` ends it."""
        with self._lock:
            self._refuse_closed()
            live = self._live.setdefault(sandbox_id, _Live(threading.Lock()))
            live.users += 1
        try:
            with live.starting:
                if live.instance is None or not live.instance.alive():
                    if live.instance is not None:
                        live.instance.close()
                    live.instance = None
                    live.instance = start()
                return live.instance
        except BaseException:
            self.release(sandbox_id)
            raise

    def release(self, sandbox_id: str) -> None:
        """End one use."""
        with self._lock:
            live = self._live[sandbox_id]
            live.users -= 1
            if live.users or (self._persistent and not self._closed and live.instance is not None):
                return
            del self._live[sandbox_id]
        if live.instance is not None:
            live.instance.close()

    def running(self, sandbox_id: str) -> Instance | None:
        """Return the sandbox's own execution if it runs."""
        with self._lock:
            live = self._live.get(sandbox_id)
        if live is None or live.instance is None or not live.instance.alive():
            return None
        return live.instance

    def count(self) -> int:
        """Return how many sandboxes have an execution."""
        with self._lock:
            return sum(1 for live in self._live.values() if live.instance is not None)

    @contextmanager
    def throwaway(self, sandbox_id: str, start: Callable[[], Instance]) -> Iterator[Instance]:
        """Start an execution for one run of a sandbox and close it at the end."""
        with self._lock:
            self._refuse_closed()
        instance = start()
        with self._lock:
            self._throwaway[sandbox_id].append(instance)
        try:
            yield instance
        finally:
            with self._lock:
                self._throwaway[sandbox_id].remove(instance)
                if not self._throwaway[sandbox_id]:
                    del self._throwaway[sandbox_id]
            instance.close()

    def kill(self, sandbox_id: str) -> None:
        """Kill everything that runs for a sandbox; its users see their commands end."""
        with self._lock:
            live = self._live.get(sandbox_id)
            targets = list(self._throwaway.get(sandbox_id, ()))
            if live is not None and live.instance is not None:
                targets.append(live.instance)
        for instance in targets:
            instance.kill()

    def forget(self, sandbox_id: str) -> None:
        """Close a sandbox's own execution, which nobody uses any more."""
        with self._lock:
            live = self._live.pop(sandbox_id, None)
        if live is not None and live.instance is not None:
            live.instance.close()

    def close_all(self) -> None:
        """Kill every execution and close those that nobody uses. Idempotent; none starts afterwards."""
        with self._lock:
            self._closed = True
            names = {*self._live, *self._throwaway}
        for name in names:
            self.kill(name)
        with self._lock:
            idle = [name for name, live in self._live.items() if not live.users]
        for name in idle:
            self.forget(name)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FluxError(Code.UNAVAILABLE, "cannot start anything: Flux is shutting down; try again when it is back")
