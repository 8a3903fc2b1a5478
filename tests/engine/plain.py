"""A substrate without walls, for tests of what the engine decides: commands run right in the tree, as this user.

It knows directories only (copy engines ``copy`` and ``reflink``). The sandbox's ``/work`` is the tree itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.core.sandbox import WORK
from flux.ports.substrate import Capabilities, Check, Command, Exit, LaunchSpec, Usage


class PlainProcess:
    """One command in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> Exit | None:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return Exit(code=code) if code >= 0 else Exit(signal=-code)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill_tree(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class PlainInstance:
    """Commands in one directory."""

    def __init__(self, spec: LaunchSpec) -> None:
        assert isinstance(spec.tree, str), "no overlays here"
        self._tree = spec.tree
        self.tree_descriptor = os.open(spec.tree, os.O_RDONLY | os.O_DIRECTORY)
        self._processes: list[PlainProcess] = []
        self._lock = threading.Lock()
        self._alive = True
        self._closed = False
        self.frozen = 0
        self.thawed = 0

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> PlainProcess:
        place = self._tree + command.cwd.removeprefix(WORK)
        with self._lock:
            if not self._alive:
                raise FluxError(Code.UNAVAILABLE, "cannot run: the sandbox ended")
            try:
                started = subprocess.Popen(
                    list(command.argv),
                    cwd=place,
                    env=dict(command.environment),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise FluxError(Code.INVALID, f"cannot run: {error}") from error
            process = PlainProcess(started)
            self._processes.append(process)
            return process

    def open_terminal(self, uid: int) -> tuple[int, int]:
        return os.openpty()

    def alive(self) -> bool:
        return self._alive

    def freeze(self) -> None:
        self.frozen += 1

    def thaw(self) -> None:
        self.thawed += 1

    def flows(self) -> list[Flow] | None:
        return None

    def network_enforced(self) -> bool:
        return False

    def usage(self) -> Usage:
        return Usage(processes=len(self._processes), memory=0, cpu_seconds=0.0)

    def kill(self) -> None:
        with self._lock:
            self._alive = False
            processes = list(self._processes)
        for process in processes:
            process.kill_tree()

    def close(self) -> None:
        self.kill()
        if not self._closed:
            self._closed = True
            os.close(self.tree_descriptor)


class Plain:
    """Starts them; ``broken`` makes the next starts fail."""

    kind = "plain"

    def __init__(self) -> None:
        self.broken = False
        self.instances: list[PlainInstance] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(
            can_fork=False, keeps_memory=False, enforces_limits=False, observes_network=False, keeps_owners=True
        )

    def start(self, spec: LaunchSpec) -> PlainInstance:
        if self.broken:
            raise FluxError(Code.UNAVAILABLE, "cannot start: it is broken on purpose")
        instance = PlainInstance(spec)
        self.instances.append(instance)
        return instance

    def base_template(self, upper: str, *, saved: bool = False) -> tuple[str, ...]:
        raise FluxError(
            Code.INVALID, "cannot make a workspace from the template base: plain sandboxes know directories only"
        )

    def check(self) -> list[Check]:
        return [Check(subject="plain", ok=True, detail="runs anywhere")]
