"""One sandbox's control groups: freezing, killing, counting, removing."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import signal
import threading
import time

from flux.ports.substrate import Usage
from flux.substrates.procbox import virtual

_COMMANDS = "commands"
_TURN_SECONDS = 0.001
_MICROSECONDS = 1_000_000
_NANOSECONDS = 1_000_000_000
_MILLISECONDS = 1000


class CommandGroup:
    """The group of one command and everything that comes from it.

    Args:
        directory: below the sandbox's.
        unified: whether it is of version 2.
    """

    def __init__(self, directory: str, *, unified: bool) -> None:
        self._directory = directory
        self._busy = threading.Lock()
        self.unified = unified

    def open(self) -> int:
        """Return what the init needs to put a command in: the directory, or the file that a process joins by."""
        if self.unified:
            return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return os.open(f"{self._directory}/tasks", os.O_WRONLY | os.O_CLOEXEC)

    def kill(self) -> None:
        """Kill every process in it and return when all are dead. A frozen one dies too."""
        with self._busy:
            kill_all(self._directory)

    def remove(self) -> bool:
        """Remove it; false while there are processes in it, or somebody waits for their death."""
        if not self._busy.acquire(blocking=False):
            return False  # who waits for an event of a group that is removed waits for ever
        try:
            os.rmdir(self._directory)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        finally:
            self._busy.release()
        return True


class Group:
    """The groups of one sandbox; see ``cgroups``."""

    def __init__(self) -> None:
        self.unified: str | None = None
        self.split: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._ended: list[CommandGroup] = []
        self._lock = threading.Lock()

    @property
    def commands(self) -> str:
        """The version 2 directory that holds the commands' groups, and not the init."""
        return f"{self.unified}/{_COMMANDS}"

    @property
    def can_freeze(self) -> bool:
        """Tell whether commands can be stopped and killed as groups."""
        return self.unified is not None or "freezer" in self.split

    @property
    def joined(self) -> list[str]:
        """The version 1 directories that the init joins; all that it starts follow."""
        return sorted({directory for name, directory in self.split.items() if name != "freezer"})

    def command(self) -> CommandGroup | None:
        """Make a group for a command; ``None`` where that is impossible."""
        with self._lock:
            self._ended = [group for group in self._ended if not group.remove()]
            number = next(self._numbers)
        if self.unified is not None:
            group = CommandGroup(f"{self.commands}/{number}", unified=True)
            os.mkdir(f"{self.commands}/{number}")
            return group
        if "freezer" in self.split:
            os.mkdir(f"{self.split['freezer']}/{number}")
            return CommandGroup(f"{self.split['freezer']}/{number}", unified=False)
        return None

    def ended(self, group: CommandGroup) -> None:
        """Remove a command's group, now or when what the command left behind has ended."""
        with self._lock:
            if not group.remove():
                self._ended.append(group)

    def freeze(self, seconds: float) -> bool:
        """Stop every command's processes; ``False`` if one does not stand still in so many seconds.

        A process that waits for a dead file server cannot be stopped.
        """
        if self.unified is not None:
            virtual.write(f"{self.commands}/cgroup.freeze", "1")
            return _await(f"{self.commands}/cgroup.events", "frozen 1", seconds)
        deadline = time.monotonic() + seconds
        virtual.write(f"{self.split['freezer']}/freezer.state", "FROZEN")
        while virtual.read(f"{self.split['freezer']}/freezer.state") != "FROZEN\n":
            if time.monotonic() > deadline:
                return False
            threading.Event().wait(_TURN_SECONDS)
        return True

    def thaw(self) -> None:
        """Let them run on."""
        if self.unified is not None:
            virtual.write(f"{self.commands}/cgroup.freeze", "0")
        elif "freezer" in self.split:
            virtual.write(f"{self.split['freezer']}/freezer.state", "THAWED")

    def kill(self) -> None:
        """Kill every command's processes. One that is frozen does nothing more before it dies."""
        if self.unified is not None:
            kill_all(self.commands)
        elif "freezer" in self.split:
            for path, _, _ in os.walk(self.split["freezer"]):
                for pid in virtual.read(f"{path}/cgroup.procs").split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            self.thaw()  # only then can those that were frozen by version 1 die

    def usage(self) -> Usage | None:
        """Return what is used; ``None`` where the groups do not count it."""
        if self.unified is None:
            return None
        processes = sum(len(virtual.read(f"{path}/cgroup.procs").split()) for path, _, _ in os.walk(self.commands))
        statistics = dict(line.split() for line in virtual.read(f"{self.unified}/cpu.stat").splitlines())
        memory = virtual.read(f"{self.unified}/memory.current")
        if not memory and "memory" in self.split:
            memory = virtual.read(f"{self.split['memory']}/memory.usage_in_bytes")
        if not memory or "usage_usec" not in statistics:
            return None
        return Usage(
            processes=processes,
            memory=int(memory),
            cpu_seconds=int(statistics["usage_usec"]) / _MICROSECONDS,
            cache=min(int(memory), self._cache()),
        )

    def _cache(self) -> int:
        """Return the bytes of files in memory; 0 where nobody counts them."""
        for directory, name in ((self.unified, "file"), (self.split.get("memory"), "cache")):
            if directory is not None:
                for line in virtual.read(f"{directory}/memory.stat").splitlines():
                    if line.startswith(f"{name} "):
                        return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Remove all of it. The sandbox's processes are dead. Idempotent."""
        if self.unified is not None:
            remove_tree(self.unified)
        for directory in set(self.split.values()):
            remove_tree(directory)


def kill_all(directory: str) -> None:
    """Kill every process in a group and below it, whatever kind it is, and return when all are dead."""
    if os.path.exists(f"{directory}/cgroup.kill"):
        virtual.write(f"{directory}/cgroup.kill", "1")
        _await(f"{directory}/cgroup.events", "populated 0")
        return
    if os.path.exists(f"{directory}/freezer.state"):
        virtual.write(f"{directory}/freezer.state", "THAWED")  # or nothing below it could die
    for path, _, _ in os.walk(directory):
        _kill_split(path)


def _kill_split(directory: str) -> None:
    """Nothing forks while it is frozen, so that one pass reaches all; without a freezer, until none is left."""
    state = f"{directory}/freezer.state"
    while pids := virtual.read(f"{directory}/cgroup.procs").split():
        if os.path.exists(state):
            virtual.write(state, "FROZEN")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if os.path.exists(state):
            virtual.write(state, "THAWED")
        threading.Event().wait(_TURN_SECONDS)


def remove_tree(directory: str) -> None:
    """Remove a group and all below it, as soon as the last process has left it."""
    for path, _, _ in os.walk(directory, topdown=False):
        for _ in range(1000):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    threading.Event().wait(_TURN_SECONDS)
                    continue
            break


def _await(events: str, wanted: str, seconds: float | None = None) -> bool:
    """Wait until an events file says something; the kernel tells when it changes. ``False`` if it took too long."""
    deadline = None if seconds is None else time.monotonic() + seconds
    descriptor = os.open(events, os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLPRI)
        while wanted not in os.pread(descriptor, 4096, 0).decode("ascii"):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            poll.poll(None if left is None else left * _MILLISECONDS)
        return True
    finally:
        os.close(descriptor)
