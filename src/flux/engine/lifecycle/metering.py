"""Takes samples of what runs, and tells them (spec: e2b, E9)."""

from __future__ import annotations

from flux.core.access import SYSTEM, Actor
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.engine.context import Context
from flux.engine.lifecycle.meter import Sample
from flux.engine.lifecycle.usage import Measured, measure
from flux.store import sandboxes

#: What a sandbox that is just being paused, moved or deleted answers.
_PASSING = (Code.NOT_FOUND, Code.ILLEGAL_STATE, Code.UNAVAILABLE, Code.FENCED)


class Sampler:
    """Samples an engine's executions, each round once.

    Args:
        context: the engine's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._before: dict[str, Measured] = {}

    def sample(self) -> None:
        """Measure every execution that runs, and forget sandboxes that are gone."""
        running = [sandbox_id for sandbox_id, _, _ in self._context.instances.ages()]
        measured = {sandbox_id: found for sandbox_id in running if (found := self._measured(sandbox_id)) is not None}
        for sandbox_id, found in measured.items():
            self._context.meter.add(sandbox_id, sample_of(found, self._before.get(sandbox_id)))
        self._before = measured
        self._context.meter.forget([name for name in self._context.meter.sandboxes() if self._is_gone(name)])

    def _measured(self, sandbox_id: str) -> Measured | None:
        # One that ended by itself is left as it is, for those who find out why.
        if self._context.instances.running(sandbox_id) is None:
            return None
        try:
            return measure(self._context, SYSTEM, sandbox_id)
        except OSError:
            return None  # it ended just now: what its files counted is gone with it
        except FluxError as error:
            if error.code in _PASSING:
                return None
            raise

    def _is_gone(self, sandbox_id: str) -> bool:
        with self._context.stores.database.reading() as tx:
            found = sandboxes.find(tx, sandbox_id)
        return found is None or found.state is NodeState.DELETING


def sample_of(now: Measured, before: Measured | None) -> Sample:
    """Return a measurement as a sample; its load is that since ``before``, or since the execution began."""
    return Sample(
        at=now.at,
        generation=now.generation,
        cpu_count=now.cpus,
        cpu_used_pct=round(min(100.0, now.load(before) / now.cpus), 2),
        memory_used=max(0, now.memory_used - now.memory_cache),
        memory_total=now.memory_total,
        memory_cache=now.memory_cache,
        disk_used=now.disk_used,
        disk_total=now.disk_total,
    )


def samples(context: Context, actor: Actor, reference: str, start: float | None, end: float | None) -> list[Sample]:
    """Return what a sandbox used between two moments, oldest first, whether it runs now or not.

    Args:
        context: the engine's.
        actor: who asks.
        reference: the sandbox.
        start: wall-clock seconds since the epoch; ``None``: as far back as samples are kept.
        end: as ``start``; ``None``: until now.

    Raises:
        FluxError: ``not_found``.
    """
    return context.meter.between(context.known(actor, reference).id, start, end)
