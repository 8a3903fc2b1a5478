"""A running sandbox: its init's pid, its control socket, and what was made for it."""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import signal
import socket
import threading
from contextlib import suppress

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.ports.network import FlowSource
from flux.ports.substrate import Command, Usage
from flux.substrates.procbox import control, ports, usage
from flux.substrates.procbox.control import Channel, Kind, Message, Spawn
from flux.substrates.procbox.groups import CommandGroup, Group
from flux.substrates.procbox.process import ProcboxProcess

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_TTY_GROUP = 5
_FREEZE_SECONDS = 10.0


class ProcboxInstance:
    """Implements ``ports.substrate.Instance``.

    Args:
        channel: to the init; closing it ends the sandbox.
        pid: of the init, as this process sees it.
        pidfd: of the init.
        tree: the open workspace, to be closed with the instance.
        terminals: the open ``/dev/pts`` of the sandbox, to be closed with the instance.
        group: its cgroups.
        flows: what is seen of its network.
        device: the device that a sandbox without network sends into, to be closed with the instance.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        pid: int,
        pidfd: int,
        tree: int,
        terminals: int,
        group: Group,
        flows: FlowSource | None,
        device: int | None,
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._channel = channel
        self._tree = tree
        self._terminals = terminals
        self._group = group
        self._flows = flows
        self._device = device
        self._numbers = itertools.count(1)
        self._processes: dict[int, ProcboxProcess] = {}
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._reader: threading.Thread | None = None
        self._asked: dict[int, threading.Event] = {}
        self._lost = False
        self._dead = False
        self._closed = False

    @property
    def tree_descriptor(self) -> int:
        return self._tree

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> ProcboxProcess:
        content = control.encode_command(command)
        group = self._command_group()
        number = next(self._numbers)
        process = ProcboxProcess(self, number, group)
        with self._lock:
            if self._lost:
                raise _ended()
            self._processes[number] = process
            self._start_reader()
        try:
            self._request(number, group, content, (stdin, stdout, stderr))
            process.await_start(command)
        except BaseException:
            with self._lock:
                self._processes.pop(number, None)
            if group is not None:
                self._group.ended(group)
            raise
        return process

    def open_terminal(self, uid: int) -> tuple[int, int]:
        try:
            master = os.open("ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self._terminals)
            try:
                fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))
                slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:
                os.close(master)
                raise
        except OSError as error:
            raise FluxError(Code.EXHAUSTED, f"cannot open a terminal: {error.strerror}; close others") from error
        with suppress(PermissionError):
            os.fchown(slave, uid, _TTY_GROUP)
        return master, slave

    def alive(self) -> bool:
        return not self._dead and not _readable(self.pidfd)

    @property
    def end_descriptor(self) -> int:
        return self.pidfd

    def freeze(self) -> None:
        if self._group.can_freeze:
            if not self._group.freeze(_FREEZE_SECONDS):
                self._group.thaw()
                raise FluxError(
                    Code.UNAVAILABLE,
                    f"cannot hold the sandbox still: one of its processes did not stop in {_FREEZE_SECONDS:g} s, as "
                    "if it waited for a device; it runs on, try again",
                    {"reason": "freeze"},
                )
        else:
            self.ask(Kind.FREEZE)

    def thaw(self) -> None:
        if self._group.can_freeze:
            self._group.thaw()
        else:
            self.ask(Kind.THAW)

    def connect(self, port: int) -> socket.socket:
        if self._dead:
            raise FluxError(Code.UNAVAILABLE, "cannot connect to a port: the sandbox ended; start it again")
        return ports.connect(self.pidfd, port)

    def flows(self) -> list[Flow] | None:
        return None if self._flows is None else self._flows.flows()

    def network_enforced(self) -> bool:
        return True  # a namespace without a link, or with one whose rules were there before it

    def usage(self) -> Usage:
        return self._group.usage() or usage.measure(self.pid)

    def kill(self) -> None:
        with self._ending:
            if self._dead:
                return
            self._group.kill()  # frozen ones too, none of which may run on for a moment: its tree may be saved
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            # The kernel lets the init be reaped only after every process of its namespace.
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            self._dead = True
            with self._lock:
                self._lost = True
            if self._reader is not None:
                self._reader.join()

    def close(self) -> None:
        self.kill()
        with self._ending:
            if self._closed:
                return
            self._closed = True
            self._channel.close()
            for descriptor in (self._tree, self._terminals, self.pidfd):
                os.close(descriptor)
            if self._flows is not None:
                self._flows.close()
            if self._device is not None:
                control.abandon(self._device)
            self._group.remove()

    def tell(self, kind: Kind, number: int, value: int = 0) -> bool:
        """Send the init a message about a command; false if the sandbox is gone."""
        try:
            self._channel.send(kind, id=number, value=value)
        except OSError:
            return False
        return True

    def ask(self, kind: Kind, number: int = 0) -> None:
        """Have the init do something, for one command or all, and return when it is done or the sandbox is gone."""
        with self._lock:
            if self._lost:
                return
            done = self._asked.setdefault(number, threading.Event())
            self._start_reader()
        if self.tell(kind, number):
            done.wait()

    def group_ended(self, group: CommandGroup) -> None:
        """Let go of the group of a command that ended."""
        self._group.ended(group)

    def _command_group(self) -> CommandGroup | None:
        try:
            return self._group.command()
        except OSError as error:
            raise (
                _ended()
                if self._lost
                else FluxError(Code.UNAVAILABLE, f"cannot run the command: cgroup {error.filename}: {error.strerror}")
            ) from error

    def _request(self, number: int, group: CommandGroup | None, content: bytes, streams: tuple[int, int, int]) -> None:
        flags = Spawn.KEEPER if group is None else Spawn.INTO if group.unified else Spawn.JOIN
        opened = [os.memfd_create("flux-command", os.MFD_CLOEXEC)]
        try:
            control.write_all(opened[0], content)
            opened += [] if group is None else [group.open()]
            descriptors = (opened[0], *streams, *opened[1:])
            self._channel.send(Kind.SPAWN, id=number, value=flags, descriptors=descriptors)
        except ConnectionError as error:
            raise _ended() from error
        except OSError as error:
            raise FluxError(Code.EXHAUSTED, f"cannot run the command: {error}") from error
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _start_reader(self) -> None:
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name=f"flux-procbox-{self.pid}", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        while (message := self._channel.receive()) is not None:
            self._hear(message)
        with self._lock:
            self._lost = True
            processes, asked = list(self._processes.values()), list(self._asked.values())
        for process in processes:
            process.lose()
        for done in asked:
            done.set()

    def _hear(self, message: Message) -> None:
        with self._lock:
            process = self._processes.get(message.id)
            if message.kind in (Kind.EXITED, Kind.REFUSED):
                self._processes.pop(message.id, None)
            done = self._asked.pop(message.id, None) if message.kind == Kind.DONE else None
        if done is not None:
            done.set()
        elif process is not None:
            process.hear(message)


def _ended() -> FluxError:
    return FluxError(Code.UNAVAILABLE, "cannot run the command: the sandbox ended; start it again")


def _readable(descriptor: int) -> bool:
    """Tell whether there is something to read now; unlike ``select`` also for a descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
