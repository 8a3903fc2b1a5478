"""The bounded threads that engine calls run in, one pool per kind so that slow calls never starve quick ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from anyio import CancelScope, CapacityLimiter, to_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

QUICK = 32
RUNS = 128
WAITS = 256
EXECS = 1024
CONNECTIONS = 64

SLOW_OPERATIONS = frozenset(
    {
        "sandbox.create",
        "sandbox.delete",
        "sandbox.baseline",
        "sandbox.changes",
        "sandbox.dry-run",
        "sandbox.speculate",
        "changeset.apply",
        "changeset.revert",
        "changeset.rerun",
        "files.write",
    }
)
WAITING_OPERATIONS = frozenset({"changeset.wait", "audit.list"})


class Threads:
    """Limits on how many engine calls run at once; further ones wait their turn."""

    def __init__(self) -> None:
        self._quick = CapacityLimiter(QUICK)
        self._runs = CapacityLimiter(RUNS)
        self._waits = CapacityLimiter(WAITS)
        self._execs = CapacityLimiter(EXECS)
        self._connections = CapacityLimiter(CONNECTIONS)

    def limiter(self, operation: str) -> CapacityLimiter:
        """Return the limit that an operation counts against."""
        if operation in WAITING_OPERATIONS:
            return self._waits
        return self._runs if operation in SLOW_OPERATIONS else self._quick

    async def quick(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a call that is soon over."""
        return await to_thread.run_sync(function, *arguments, limiter=self._quick)

    async def run(self, operation: str, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run the call of an operation. It goes on to its end also when nobody waits for it any more."""
        return await to_thread.run_sync(function, *arguments, limiter=self.limiter(operation), abandon_on_cancel=True)

    async def slow(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a call that may take long to begin, such as the start of a sandbox."""
        return await to_thread.run_sync(function, *arguments, limiter=self._runs)

    async def connection(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a call that connects to what somebody else listens with, who may let it wait."""
        return await to_thread.run_sync(function, *arguments, limiter=self._connections)

    async def last(self, function: Callable[[], None]) -> None:
        """Run a call that releases something; it runs although its task is being cancelled."""
        with CancelScope(shield=True):
            await to_thread.run_sync(function, limiter=self._quick)

    async def end(self, function: Callable[[], T]) -> T:
        """Wait for the end of a command."""
        return await to_thread.run_sync(function, limiter=self._execs, abandon_on_cancel=True)
