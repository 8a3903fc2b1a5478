"""Drives the control plane's operations in production: calls nodes, waits, reaches points (spec: generations, §9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from flux.control.calls import Calls, Describe, Nap, NodeRequest, Send
from flux.core.errors import Code, FluxError
from flux.core.node import Activate, Capture, Destroy, Evict, Inventory, Stop, Suspend, TearDown
from flux.failpoints import Point, reach
from flux.ports.node import Node

T = TypeVar("T")

#: Threads that wait for a call to make; a busy moment's are let go.
_IDLE_MAX = 16


class Nodes(Protocol):
    """Finds the node behind a name in the registry."""

    def node(self, name: str, address: str | None = None) -> Node:
        """Return it; ``address``: of one that is not registered yet. Raises ``FluxError`` ``not_found``."""
        ...


class Changes:
    """Tells those who wait for a sandbox's row in this process that it changed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._numbers: dict[str, int] = {}
        self._watchers: dict[str, int] = {}

    def changed(self, sandbox_id: str) -> None:
        """Wake everybody who watches a sandbox."""
        with self._condition:
            if sandbox_id in self._watchers:
                self._numbers[sandbox_id] = self._numbers.get(sandbox_id, 0) + 1
                self._condition.notify_all()

    def wait(self, sandbox_id: str | None, seconds: float) -> None:
        """Wait until the sandbox changes, or the time is over."""
        if sandbox_id is None:
            threading.Event().wait(seconds)
            return
        with self._condition:
            self._watchers[sandbox_id] = self._watchers.get(sandbox_id, 0) + 1
            seen = self._numbers.get(sandbox_id, 0)
            try:
                self._condition.wait_for(lambda: self._numbers.get(sandbox_id, 0) != seen, seconds)
            finally:
                self._watchers[sandbox_id] -= 1
                if not self._watchers[sandbox_id]:
                    del self._watchers[sandbox_id]
                    self._numbers.pop(sandbox_id, None)


class Driver:
    """Runs operations to their end, each in the thread of its caller.

    Args:
        nodes: finds nodes.
        changes: wakes those who nap.
        threads: call nodes in threads of their own, so that a node which does not answer holds nobody up longer than it
            was given; one command's process calls them directly.
    """

    def __init__(self, nodes: Nodes, changes: Changes, *, threads: bool) -> None:
        self._nodes = nodes
        self._changes = changes
        self._threads = threads
        self._callers = _Callers()

    def run(self, calls: Calls[T]) -> T:
        """Drive an operation; what an armed test raises is raised at the point."""
        try:
            step = next(calls)
            while True:
                try:
                    reply = self._do(step)
                except BaseException as error:
                    step = calls.throw(error)
                else:
                    step = calls.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _do(self, step: Point | Send | Nap) -> Any:
        if isinstance(step, Point):
            return reach(step)
        if isinstance(step, Nap):
            return self._changes.wait(step.watching, step.seconds)
        if step.timeout_seconds is None or not self._threads:
            return self._ask(step)
        call = _Call(lambda: self._ask(step))
        self._callers.start(call)
        return call.answer(step)

    def _ask(self, send: Send) -> Any:
        request = send.request
        if isinstance(request, Describe):
            return self._nodes.node(send.node, request.address).describe()
        return _METHODS[type(request)](self._nodes.node(send.node))(request)


_METHODS: Mapping[type[NodeRequest], Callable[[Node], Callable[[Any], Any]]] = {
    Activate: lambda node: node.activate,
    Suspend: lambda node: node.suspend,
    TearDown: lambda node: node.tear_down,
    Destroy: lambda node: node.destroy,
    Capture: lambda node: node.capture,
    Stop: lambda node: node.stop,
    Evict: lambda node: node.evict,
    Inventory: lambda node: node.inventory,
}


class _Call:
    """One question to a node, asked in another thread."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._ended = threading.Lock()
        self._ended.acquire()
        self._answer: Any = None
        self._failure: BaseException | None = None

    def make(self) -> None:
        """Ask, and keep the answer."""
        try:
            self._answer = self._ask()
        except BaseException as error:
            self._failure = error
        self._ended.release()

    def answer(self, send: Send) -> Any:
        """Return the answer, or raise; when the time is over it is nobody's any more, and asking again finds it out."""
        if not self._ended.acquire(timeout=send.timeout_seconds or 0.0):
            raise FluxError(
                Code.UNKNOWN_OUTCOME,
                f"cannot tell what node {send.node} did: no answer within {send.timeout_seconds:g} s; ask again",
            )
        if self._failure is not None:
            raise self._failure
        return self._answer


class _Callers:
    """Threads that make calls, kept for the next one; as many as there are calls that have not ended."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def start(self, call: _Call) -> None:
        """Have a call made."""
        with self._lock:
            spawn = self._idle == 0
            self._idle -= not spawn
        self._calls.put(call)
        if spawn:
            threading.Thread(target=self._serve, name="node call", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._calls.get().make()
            with self._lock:
                if self._idle >= _IDLE_MAX:
                    return
                self._idle += 1
