"""The running executions of sandboxes: one live one per sandbox, and the throwaway ones of its runs.

A live one belongs to a generation. While there is one of another generation, or one that is being ended, nobody gets
a new one, so two generations never run side by side on this node (spec: generations, §10, I1).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Instance


class _Live(msgspec.Struct, eq=False):
    """A sandbox's own execution, of which generation it is, and how many calls use it."""

    generation: int
    starting: threading.Lock
    since: float
    instance: Instance | None = None
    users: int = 0
    ended: bool = False


class Instances:
    """Keeps executions so that deleting a sandbox, or closing the engine, leaves none.

    Args:
        persistent: live executions outlast the calls that use them (a daemon); else the last user ends them.
    """

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[str, _Live] = {}
        self._throwaway: dict[str, list[Instance]] = defaultdict(list)
        self._closed = False

    @contextmanager
    def live(self, sandbox_id: str, generation: int, start: Callable[[], Instance]) -> Iterator[Instance]:
        """Use a sandbox's own execution; ``start`` makes one if there is none, or if it ended on its own.

        Raises:
            FluxError: ``unavailable`` while there is one of another generation, or while this one is being ended.
        """
        live = self._enter(sandbox_id, generation)
        try:
            yield self._started(live, sandbox_id, start)
        finally:
            self._leave(sandbox_id, live)

    def _started(self, live: _Live, sandbox_id: str, start: Callable[[], Instance]) -> Instance:
        with live.starting:
            if live.ended:
                raise _leaving(sandbox_id)
            if live.instance is None or not live.instance.alive():
                if live.instance is not None:
                    live.instance.close()
                live.instance = None
                live.instance = start()
            return live.instance

    def _enter(self, sandbox_id: str, generation: int) -> _Live:
        with self._lock:
            self._refuse_closed()
            live = self._live.get(sandbox_id)
            if live is None:
                live = self._live[sandbox_id] = _Live(generation, threading.Lock(), time.monotonic())
            if live.ended or live.generation != generation:
                raise _leaving(sandbox_id)
            live.users += 1
            return live

    def _leave(self, sandbox_id: str, live: _Live) -> None:
        """End one use; the last one closes what nobody is to use again."""
        with self._lock:
            live.users -= 1
            self._changed.notify_all()
            known = self._live.get(sandbox_id) is live
            keeps = self._persistent and not self._closed and live.instance is not None
            if live.users or (known and (keeps or live.ended)):  # who ends it closes it
                return
            if known:
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

    def settled(self, sandbox_id: str, generation: int) -> Instance | None:
        """Do what ``running`` does for one generation, after a start that is under way."""
        with self._lock:
            live = self._live.get(sandbox_id)
        if live is None or live.generation != generation:
            return None
        with live.starting:
            return live.instance if live.instance is not None and live.instance.alive() else None

    def ages(self) -> list[tuple[str, int, float]]:
        """Return sandbox id, generation and seconds since its start of every live execution."""
        now = time.monotonic()
        with self._lock:
            return [
                (sandbox_id, live.generation, now - live.since)
                for sandbox_id, live in self._live.items()
                if live.instance is not None
            ]

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

    def stop(self, sandbox_id: str, generation: int | None = None) -> None:
        """Kill a generation's own execution (``None``: any) and let it serve nobody new, nor be started again.

        A start that is under way ends first. ``forget`` completes it.
        """
        with self._lock:
            live = self._live.get(sandbox_id)
            if live is None or generation not in (None, live.generation):
                return
            live.ended = True
        with live.starting:
            if live.instance is not None:
                live.instance.kill()

    def forget(self, sandbox_id: str, generation: int | None = None, *, wait_seconds: float = 0.0) -> None:
        """Kill and close a sandbox's own execution.

        Its users are waited for, at most ``wait_seconds``. Who is still there then keeps a dead execution, which the
        last of them closes; it is in nobody's way.
        """
        self.stop(sandbox_id, generation)
        with self._lock:
            live = self._live.get(sandbox_id)
            if live is None or generation not in (None, live.generation):
                return
            self._changed.wait_for(lambda: not live.users, wait_seconds)
            if self._live.get(sandbox_id) is not live:
                return
            del self._live[sandbox_id]
            if live.users:
                return
        if live.instance is not None:
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


def _leaving(sandbox_id: str) -> FluxError:
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot use the sandbox {sandbox_id}: its execution is being ended or replaced; look at it again",
        {"reason": "busy"},
    )
