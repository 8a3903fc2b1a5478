"""Control groups of whichever kind the machine has: version 2, version 1, or both side by side (spec: sandboxes).

A sandbox gets one directory per hierarchy that is of use, named after the Flux process that made it, so that what a
killed Flux left behind can be told from what is alive. Commands get directories below it, so that each can be killed
with everything that came from it. Everything here degrades: what the machine does not offer is ``None`` and reported.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import msgspec

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Limits
from flux.substrates.procbox import virtual
from flux.substrates.procbox.groups import Group, kill_all, remove_tree

_PREFIX = "flux-"
_WANTED = ("memory", "pids", "cpu")
_MIB = 1 << 20
_PERIOD_US = 100_000
_numbers = itertools.count(1)


class Hierarchies(msgspec.Struct, frozen=True, kw_only=True):
    """Where groups can be made. ``unified``: a version 2 directory; ``unified_controllers``: what limits it can set;
    ``split``: version 1 directories by controller."""

    unified: str | None = None
    unified_controllers: frozenset[str] = frozenset()
    split: dict[str, str] = {}

    @property
    def limits(self) -> frozenset[str]:
        """The resources that can be bounded for a sandbox as a whole."""
        return self.unified_controllers | (self.split.keys() & set(_WANTED))

    @property
    def directories(self) -> list[str]:
        """Every directory in which groups of Flux may be."""
        return [*([self.unified] if self.unified else []), *self.split.values()]


def find_hierarchies(mounts: str, own: str) -> Hierarchies:
    """Return where this process can make groups.

    Args:
        mounts: the text of ``/proc/self/mountinfo``.
        own: the text of ``/proc/self/cgroup``.
    """
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    unified, split = None, {}
    controllers: frozenset[str] = frozenset()
    for kind, point, options in _cgroup_mounts(mounts):
        if kind == "cgroup2":
            unified, controllers = _unified(point, paths.get("", "/"))
            continue
        for controller in {*_WANTED, "freezer"} & set(options.split(",")):
            path = next((path for names, path in paths.items() if controller in names.split(",")), "/")
            if directory := _writable(point, path):
                split[controller] = directory
    return Hierarchies(unified=unified, unified_controllers=controllers, split=split)


def _cgroup_mounts(mounts: str) -> Iterator[tuple[str, str, str]]:
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            yield kind, left.split()[4], options.split()[-1]


def _writable(point: str, path: str) -> str | None:
    for directory in (point + path.rstrip("/"), point):
        if os.access(f"{directory}/cgroup.procs", os.W_OK) and os.access(directory, os.W_OK):
            return directory
    return None


def _unified(point: str, path: str) -> tuple[str | None, frozenset[str]]:
    """The nearest directory above us whose children can be limited; without one, the nearest that is ours to use."""
    first = None
    directory = point + path.rstrip("/")
    while directory.startswith(point):
        if os.access(directory, os.W_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK):
            first = first or directory
            found = _enabled(directory)
            if {"memory", "pids"} <= found:
                return directory, found
        directory = os.path.dirname(directory)
    return first, _enabled(first) if first else frozenset()


def _enabled(directory: str) -> frozenset[str]:
    wanted = set(virtual.read(f"{directory}/cgroup.controllers").split()) & set(_WANTED)
    for controller in wanted - set(virtual.read(f"{directory}/cgroup.subtree_control").split()):
        with contextlib.suppress(OSError):
            virtual.write(f"{directory}/cgroup.subtree_control", f"+{controller}")
    return frozenset(wanted & set(virtual.read(f"{directory}/cgroup.subtree_control").split()))


class Cgroups:
    """Makes and removes groups of this process.

    Args:
        hierarchies: where; found out if not given.
    """

    def __init__(self, hierarchies: Hierarchies | None = None) -> None:
        self.hierarchies = hierarchies or find_hierarchies(
            virtual.read("/proc/self/mountinfo"), virtual.read("/proc/self/cgroup")
        )

    def create(self, sandbox_id: str, limits: Limits) -> Group:
        """Make a sandbox's groups with its limits.

        Raises:
            FluxError: ``unavailable`` if the machine refuses.
        """
        owner = os.getpid()
        name = f"{_PREFIX}{owner}-{_start_time(owner)}-{sandbox_id}-{next(_numbers)}"
        group = Group()
        try:
            self._make_unified(group, name, limits)
            self._make_split(group, name, limits)
        except OSError as error:
            group.remove()
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot start sandbox {sandbox_id}: cgroup {error.filename or name}: {error.strerror}",
            ) from error
        return group

    def _make_unified(self, group: Group, name: str, limits: Limits) -> None:
        if self.hierarchies.unified is None:
            return
        os.mkdir(f"{self.hierarchies.unified}/{name}")
        group.unified = f"{self.hierarchies.unified}/{name}"
        os.mkdir(group.commands)
        available = self.hierarchies.unified_controllers
        for controller, file, value in _unified_limits(limits):
            if controller in available:
                _set(f"{group.unified}/{file}", value)

    def _make_split(self, group: Group, name: str, limits: Limits) -> None:
        bounds = list(_split_limits(limits))
        needed = {controller for controller, _, _ in bounds}
        if self.hierarchies.unified is None:
            needed.add("freezer")
        for controller in sorted(needed & self.hierarchies.split.keys()):
            directory = f"{self.hierarchies.split[controller]}/{name}"
            if directory not in group.split.values():
                os.mkdir(directory)
            group.split[controller] = directory
        for controller, file, value in bounds:
            if controller in group.split:
                _set(f"{group.split[controller]}/{file}", value)

    def sweep(self) -> list[str]:
        """Kill and remove the groups of Flux processes that are gone; return the directories."""
        removed = []
        for directory in self.hierarchies.directories:
            with contextlib.suppress(OSError):
                for name in os.listdir(directory):
                    if name.startswith(_PREFIX) and not _owner_lives(name):
                        kill_all(f"{directory}/{name}")
                        remove_tree(f"{directory}/{name}")
                        removed.append(f"{directory}/{name}")
        return removed


def _unified_limits(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.memory_mib is not None:
        yield "memory", "memory.max", str(limits.memory_mib * _MIB)
        yield "memory", "memory.swap.max", "0"
    if limits.pids is not None:
        yield "pids", "pids.max", str(limits.pids + 1)
    if limits.cpus is not None:
        yield "cpu", "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"


def _split_limits(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.memory_mib is not None:
        yield "memory", "memory.limit_in_bytes", str(limits.memory_mib * _MIB)
        yield "memory", "memory.memsw.limit_in_bytes", str(limits.memory_mib * _MIB)
    if limits.pids is not None:
        yield "pids", "pids.max", str(limits.pids + 1)
    if limits.cpus is not None:
        yield "cpu", "cpu.cfs_period_us", str(_PERIOD_US)
        yield "cpu", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))


def _set(path: str, value: str) -> None:
    """Set a bound; a machine without swap accounting has no file for it, and no swap to bound."""
    try:
        virtual.write(path, value)
    except FileNotFoundError:
        if "swap" not in path and "memsw" not in path:
            raise


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot: with its pid, its identity; empty if there is none."""
    text = virtual.read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split()[19] if text else ""


def _owner_lives(name: str) -> bool:
    parts = name.split("-")
    return len(parts) > 2 and parts[1].isdecimal() and _start_time(int(parts[1])) == parts[2]
