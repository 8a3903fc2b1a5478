"""What a running sandbox uses at a moment: processor time, memory, the disk below its tree (spec: e2b, §4)."""

from __future__ import annotations

import os

import msgspec

from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.ports.substrate import Instance


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Sizes in bytes, ``at`` in wall-clock seconds since the epoch.

    ``cpu_seconds``: of all its processes since the execution began, ``age_seconds`` ago; ``cpus``: how many of them may
    work at once. ``memory_cache``: of the files that it read, as far as that is known. The disk is that of the file
    system below the tree, which sandboxes share.
    """

    sandbox_id: str
    generation: int
    at: float
    age_seconds: float
    cpus: float
    cpu_seconds: float
    processes: int
    memory_used: int
    memory_total: int
    memory_cache: int
    disk_used: int
    disk_total: int

    def load(self, before: Measured | None) -> float:
        """Return the share of one processor that was used since ``before``, in percent; without it since the start.

        Two measurements of one moment, or of two executions, tell nothing of what was between them.
        """
        seconds, used = self.age_seconds, self.cpu_seconds
        if before is not None and before.generation == self.generation and before.age_seconds < self.age_seconds:
            seconds, used = self.age_seconds - before.age_seconds, self.cpu_seconds - before.cpu_seconds
        return max(0.0, 100.0 * used / seconds) if seconds > 0 else 0.0


def measure(context: Context, actor: Actor, reference: str) -> Measured:
    """Measure the execution of a sandbox that runs; none is started for it.

    Raises:
        FluxError: ``not_found``, ``illegal_state``; ``unavailable`` if it has no execution at the moment.
    """
    sandbox = context.sandbox(actor, reference)
    with (
        context.locks.sandbox(sandbox.id),
        context.instances.live(sandbox.id, sandbox.generation, lambda: _refuse(sandbox)) as instance,
    ):
        return _measured(context, sandbox, instance)


def _measured(context: Context, sandbox: Sandbox, instance: Instance) -> Measured:
    used = instance.usage()
    disk = os.statvfs(instance.tree_descriptor)
    memory_mib = sandbox.memory_mib or context.settings.memory_mib
    ages = {(name, generation): age for name, generation, age in context.instances.ages()}
    return Measured(
        sandbox_id=sandbox.id,
        generation=sandbox.generation,
        at=context.clock.wall(),
        age_seconds=ages.get((sandbox.id, sandbox.generation), 0.0),
        cpus=sandbox.cpus or context.settings.cpus or float(os.cpu_count() or 1),
        cpu_seconds=used.cpu_seconds,
        processes=used.processes,
        memory_used=used.memory,
        memory_total=memory_mib << 20 if memory_mib else _machine_memory(),
        memory_cache=used.cache,
        disk_used=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        disk_total=disk.f_blocks * disk.f_frsize,
    )


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _refuse(sandbox: Sandbox) -> Instance:
    raise FluxError(
        Code.UNAVAILABLE,
        f"cannot measure the sandbox {sandbox.id}: nothing of it runs at the moment; try again after its next use",
        {"reason": "idle"},
    )
