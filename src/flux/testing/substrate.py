"""A substrate without walls: commands run as plain processes of this user, right in the sandbox's directories.

It keeps the substrate's contract in everything but isolation, so that what stands on a substrate can be tested where
there are no namespaces. A path inside the sandbox is the host's path of the directory that stands for it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.core.paths import is_within
from flux.ports.substrate import CLOSED_PORT, Capabilities, Check, Command, Exit, LaunchSpec, Overlay, Usage
from flux.substrates.procbox.plan import HOME, WORKSPACE, checked

#: The variable by which a process and all that comes from it can be found again.
_MARK = "FLUX_FAKE"
_TICKS = os.sysconf("SC_CLK_TCK")


def _marked(mark: str) -> Iterator[int]:
    """Yield the living processes whose environment holds a mark; a dead one has no environment."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if f"{_MARK}={mark}".encode() in Path("/proc", name, "environ").read_bytes():
                    yield int(name)


def _kill_marked(mark: str) -> None:
    while found := list(_marked(mark)):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class FakeProcess:
    """Implements ``ports.substrate.Process``."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self._process = process
        self._mark = mark

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
        _kill_marked(self._mark)
        self._process.wait()


class FakeInstance:
    """Implements ``ports.substrate.Instance``.

    Args:
        places: the host directory of each directory inside.
        tree: the workspace's.
    """

    def __init__(self, places: dict[str, str], tree: str) -> None:
        self._places = places
        self._tree = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mark = uuid.uuid4().hex
        self._processes: list[FakeProcess] = []
        self._lock = threading.Lock()
        self._thawed = threading.Event()
        self._thawed.set()
        self._dead = False
        self._closed = False
        self._end = os.eventfd(0, os.EFD_CLOEXEC)

    @property
    def end_descriptor(self) -> int:
        return self._end

    @property
    def tree_descriptor(self) -> int:
        return self._tree

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> FakeProcess:
        self._thawed.wait()
        with self._lock:
            if self._dead:
                raise FluxError(Code.UNAVAILABLE, "cannot run the command: the sandbox ended; start it again")
            mark = f"{self._mark}-{len(self._processes)}."
            process = FakeProcess(self._start(command, mark, (stdin, stdout, stderr)), mark)
            self._processes.append(process)
            return process

    def _start(self, command: Command, mark: str, streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
        if not command.argv or any("\0" in argument for argument in command.argv):
            raise FluxError(Code.INVALID, "cannot run the command: no program is named, or an argument holds a NUL")
        directory = self._on_host(command.cwd)
        if not os.path.isdir(directory):
            raise FluxError(Code.INVALID, f"cannot run in the directory {command.cwd}: there is none")
        try:
            return self._popen(list(command.argv), directory, command, mark, streams)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise FluxError(Code.INVALID, f"cannot run {command.argv[0]!r}: {error.strerror}") from error
        program = shutil.which(command.argv[0], path=command.environment.get("PATH")) or command.argv[0]
        return self._popen(["/bin/sh", program, *command.argv[1:]], directory, command, mark, streams)

    def _popen(
        self, argv: list[str], directory: str, command: Command, mark: str, streams: tuple[int, int, int]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=directory,
            env={**command.environment, _MARK: mark},
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
        )

    def _on_host(self, inside: str) -> str:
        within = [place for place in self._places if is_within(inside, place)]
        place = max(within, key=len, default="")
        return self._places.get(place, "") + inside[len(place.rstrip("/")) :]

    def open_terminal(self, uid: int) -> tuple[int, int]:
        return os.openpty()

    def alive(self) -> bool:
        return not self._dead

    def freeze(self) -> None:
        self._thawed.clear()
        for pid in _marked(self._mark):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in _marked(self._mark):
            os.kill(pid, signal.SIGCONT)
        self._thawed.set()

    def connect(self, port: int) -> socket.socket:
        if self._dead:
            raise FluxError(Code.UNAVAILABLE, "cannot connect to a port: the sandbox ended; start it again")
        for address in ("127.0.0.1", "::1"):
            with suppress(OSError):
                return socket.create_connection((address, port))
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot connect to port {port} of the sandbox: nothing there takes the connection",
            {"reason": CLOSED_PORT, "port": port},
        )

    def flows(self) -> list[Flow] | None:
        return None

    def network_enforced(self) -> bool:
        return False

    def usage(self) -> Usage:
        found = [Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split() for pid in _marked(self._mark)]
        return Usage(
            processes=len(found),
            memory=sum(int(fields[21]) for fields in found) * os.sysconf("SC_PAGE_SIZE") or 1,
            cpu_seconds=sum(int(fields[11]) + int(fields[12]) for fields in found) / _TICKS,
        )

    def kill(self) -> None:
        with self._lock:
            self._dead = True
        self._thawed.set()
        _kill_marked(self._mark)
        for process in self._processes:
            process.wait()
        if not self._closed:
            os.eventfd_write(self._end, 1)

    def close(self) -> None:
        self.kill()
        if not self._closed:
            self._closed = True
            os.close(self._tree)
            os.close(self._end)


class FakeSubstrate:
    """Implements ``ports.substrate.Substrate``. An overlay is a copy of its layers, made in the upper one."""

    @property
    def kind(self) -> str:
        return "fake"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            can_fork=False, keeps_memory=False, enforces_limits=False, observes_network=False, keeps_owners=False
        )

    def base_template(self, upper: str, *, saved: bool = False) -> tuple[str, ...]:
        if not saved:
            os.makedirs(f"{upper}/home/user", exist_ok=True)
        return ()

    def check(self) -> list[Check]:
        return [Check(subject="fake", ok=True, detail="runs anywhere, without isolation")]

    def start(self, spec: LaunchSpec) -> FakeInstance:
        checked(spec)
        try:
            tree = _directory(spec.tree)
            places = {WORKSPACE if spec.layout == "bound" else "/": tree}
            if spec.scratch is not None:
                places["/tmp"] = _directory(spec.scratch)
            if spec.home is not None:
                places[HOME] = _directory(spec.home)
        except OSError as error:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot start sandbox {spec.sandbox_id}: {error.filename}: {error.strerror}",
            ) from error
        return FakeInstance(places, tree)


def _directory(place: str | Overlay) -> str:
    if isinstance(place, str):
        os.listdir(place)
        return place
    lower = [*place.lower, *([] if place.below is None else [_directory(place.below)])]
    if place.lower_descriptor is not None:
        lower = [f"/proc/self/fd/{place.lower_descriptor}"]
    for layer in reversed(lower):
        shutil.copytree(layer, place.upper, symlinks=True, dirs_exist_ok=True)
    return place.upper
