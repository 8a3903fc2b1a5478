"""One admitted request of a sandbox's data plane: for which execution, by whom, and what does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from flux.core.access import Actor

if TYPE_CHECKING:
    from flux.api.envd.processes import ProcessTable
    from flux.api.envd.watches import WatchTable
    from flux.api.rest.threads import Threads
    from flux.control.dataplane import DataPlane

DEFAULT_USER = "user"


class Tables:
    """What outlives requests: the processes and watchers of the executions of this process."""

    def __init__(self, processes: ProcessTable, watches: WatchTable | None = None) -> None:
        self.processes = processes
        self._watches = watches

    @property
    def watches(self) -> WatchTable:
        """The watchers; made when the first one is asked for."""
        if self._watches is None:
            from flux.api.envd.watches import WatchTable

            self._watches = WatchTable()
        return self._watches


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request after admission.

    ``sandbox`` names the execution (``<id>.<generation>``) as ``plane`` takes it, so that nothing is done to another
    one. ``user``: whom the request is made as, if its headers say so. ``deadline``: when the caller's time is over, in
    seconds of the event loop's clock.
    """

    plane: DataPlane
    threads: Threads
    tables: Tables
    actor: Actor
    sandbox_id: str
    generation: int
    user: str | None = None
    deadline: float | None = None

    @property
    def sandbox(self) -> str:
        """The execution, as ``plane`` takes it."""
        return f"{self.sandbox_id}.{self.generation}"

    @property
    def as_user(self) -> str:
        """The user inside the sandbox."""
        return self.user or DEFAULT_USER
