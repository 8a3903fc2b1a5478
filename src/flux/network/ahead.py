"""Things made before somebody asks for them, and ended after whoever had them has gone on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from flux.core.errors import FluxError

R = TypeVar("R")
T = TypeVar("T")

#: So many may wait for their end; who comes with more ends his own.
_ENDING_MAX = 64
#: When nobody has asked for so long, what was made ahead is ended.
_IDLE_SECONDS = 60.0


class Ahead(Generic[R, T]):
    """Keeps a few of what was last asked for ready; one thread of its own makes them, another ends them.

    Nothing is made before the first question, and after a failure nothing until the next one.

    Args:
        count: how many to have ready.
        make: makes one for a request.
        end: ends several.
    """

    def __init__(self, count: int, *, make: Callable[[R], T], end: Callable[[Sequence[T]], None]) -> None:
        self._count = count
        self._make = make
        self._end = end
        self._changed = threading.Condition()
        self._request: R | None = None
        self._ready: deque[T] = deque()
        self._ending: list[T] = []
        self._threads: list[threading.Thread] = []
        self._making = False
        self._closed = False

    def take(self, request: R) -> T | None:
        """Return one that is ready for just this request, whose it is then; ``None`` if there is none."""
        with self._changed:
            if self._closed:
                return None
            self._start()
            if request != self._request:
                self._retire()
                self._request = request
            self._changed.notify_all()
            return self._ready.popleft() if self._ready else None

    def give(self, one: T) -> bool:
        """Have one ended soon; ``False`` if that is up to the caller."""
        with self._changed:
            if self._closed or len(self._ending) >= _ENDING_MAX:
                return False
            self._start()
            self._ending.append(one)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End all that are ready, and wait for every end. Idempotent."""
        with self._changed:
            self._closed = True
            self._retire()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        if not self._threads:
            for name, work in (("make", self._work_ahead), ("end", self._work_after)):
                self._threads.append(threading.Thread(target=work, name=f"flux-network-{name}", daemon=True))
                self._threads[-1].start()

    def _retire(self) -> None:
        """Let those be ended that are ready."""
        self._request = None
        self._ending.extend(self._ready)
        self._ready.clear()

    def _work_ahead(self) -> None:
        while (request := self._next_request()) is not None:
            made = None
            with suppress(FluxError, OSError):  # who asks next is told why
                made = self._make(request)
            with self._changed:
                self._making = False
                if made is None:
                    self._request = None
                elif request == self._request:
                    self._ready.append(made)
                else:
                    self._ending.append(made)
                self._changed.notify_all()

    def _next_request(self) -> R | None:
        with self._changed:
            while not self._closed:
                if self._request is not None and len(self._ready) < self._count:
                    self._making = True
                    return self._request
                if not self._changed.wait(_IDLE_SECONDS if self._ready else None):
                    self._retire()
                    self._changed.notify_all()
            return None

    def _work_after(self) -> None:
        while ending := self._next_ending():
            with suppress(FluxError, OSError):  # a sweep finds what is left
                self._end(ending)

    def _next_ending(self) -> list[T]:
        """Wait for what is to be ended; nothing when all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or (self._closed and not self._making))
            ending, self._ending = self._ending, []
            return ending
