"""Sandboxes that are process trees in namespaces of their own (spec: sandboxes, procbox)."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property

import msgspec

from flux.core.errors import FluxError
from flux.ports.network import LinkedNetwork, PacketSink
from flux.ports.substrate import Capabilities, Check, LaunchSpec
from flux.substrates.procbox.cgroups import Cgroups
from flux.substrates.procbox.host import TUN, read_host
from flux.substrates.procbox.instance import ProcboxInstance
from flux.substrates.procbox.launch import Start, Tools
from flux.substrates.procbox.plan import checked, make_plan

_LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_launcher")


class Procbox:
    """Implements ``ports.substrate.Substrate``.

    Args:
        state_dir: Flux's own state, which no sandbox may see.
        sink: refuses and records what sandboxes without network send; without one they just have no route.
        network: lets sandboxes reach ports or the internet; without one that is refused.
        cgroups: makes the groups of sandboxes; by default of whatever this machine has.
        launcher: the program that becomes the init.
    """

    def __init__(
        self,
        state_dir: str,
        *,
        sink: PacketSink | None = None,
        network: LinkedNetwork | None = None,
        cgroups: Cgroups | None = None,
        launcher: str = _LAUNCHER,
    ) -> None:
        self._state_dir = os.path.realpath(state_dir)
        self._host = read_host()
        self._tools = Tools(launcher, cgroups or Cgroups(), sink, network)
        self._running: dict[int, ProcboxInstance] = {}
        self._lock = threading.Lock()
        self._swept = False

    @property
    def kind(self) -> str:
        return "procbox"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            can_fork=False,
            keeps_memory=False,
            enforces_limits={"memory", "pids"} <= self._tools.cgroups.hierarchies.limits,
            observes_network=self._tools.sink is not None and os.access(TUN, os.R_OK | os.W_OK),
            keeps_owners=self._host.privileged,
            connects=self._connects,
        )

    @cached_property
    def _connects(self) -> bool:
        network = self._tools.network
        return network is not None and network.available().ok

    def check(self) -> list[Check]:
        from flux.substrates.procbox import checks

        network = self._tools.network
        findings = checks.find(self._tools.launcher, self._host, self._tools.cgroups.hierarchies, self.start)
        return findings if network is None else [*findings, network.available()]

    def base_template(self, upper: str, *, saved: bool = False) -> tuple[str, ...]:
        from flux.substrates.procbox import template

        return template.prepare(upper, self._host, saved=saved)

    def start(self, spec: LaunchSpec) -> ProcboxInstance:
        spec = checked(msgspec.structs.replace(spec, hidden=(*spec.hidden, self._state_dir)))
        with self._lock:
            self._sweep_once()
            self._running = {tree: instance for tree, instance in self._running.items() if instance.alive()}
            neighbours = {tree: instance.pidfd for tree, instance in self._running.items()}
        plan = make_plan(spec, self._host, self._tools.cgroups.hierarchies.limits)
        instance = Start(self._tools, spec, plan, neighbours).run()
        with self._lock:
            self._running[instance.tree_descriptor] = instance
        return instance

    def sweep(self) -> list[str]:
        """Kill and remove what Flux processes left that are gone; return the directories of their cgroups."""
        removed = self._tools.cgroups.sweep()
        if self._tools.network is not None:
            with suppress(FluxError):  # then nothing can be connected either, which says why
                self._tools.network.sweep()
        return removed

    def _sweep_once(self) -> None:
        if not self._swept:
            self._swept = True
            self._tools.cgroups.sweep()
