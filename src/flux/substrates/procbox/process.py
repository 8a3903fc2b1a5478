"""One command in a sandbox, as its owner sees it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Command, Exit
from flux.substrates.procbox import host
from flux.substrates.procbox.control import Kind, Message

if TYPE_CHECKING:
    from flux.substrates.procbox.groups import CommandGroup
    from flux.substrates.procbox.instance import ProcboxInstance

KILLED = Exit(signal=9)


def exit_of(status: int) -> Exit:
    """Return how a process with this wait status ended."""
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))


def refusal(command: Command, message: Message) -> FluxError:
    """Return why the init did not start a command."""
    number, stage = message.value, message.text
    reason = host.describe(number)
    if stage == "exec":
        return FluxError(Code.INVALID, f"cannot run {command.argv[0][:200]!r}: {reason}")
    if stage == "cwd":
        return FluxError(Code.INVALID, f"cannot run in the directory {command.cwd[:200]!r}: {reason}")
    if stage == "user":
        return FluxError(
            Code.INVALID,
            f"cannot run as user {command.uid} and group {command.gid}: {reason}; without privileges a sandbox has "
            "only the user that runs Flux",
        )
    if stage == "terminal":
        return FluxError(Code.INVALID, f"cannot make stdin the controlling terminal: {reason}")
    code = Code.EXHAUSTED if host.is_shortage(number) else Code.UNAVAILABLE
    return FluxError(code, f"cannot start a process in the sandbox ({stage or 'set-up'}): {reason}")


class ProcboxProcess:
    """Implements ``ports.substrate.Process``. Its owner's reader tells it what happened."""

    def __init__(self, instance: ProcboxInstance, number: int, group: CommandGroup | None) -> None:
        self._instance = instance
        self._number = number
        self._group = group
        self._pid: int | None = None
        self._exit: Exit | None = None
        self._refused: Message | None = None
        self._answered = threading.Event()
        self._ended = threading.Event()

    @property
    def pid(self) -> int:
        return self._pid or 0

    def wait(self, timeout: float | None = None) -> Exit | None:
        self._ended.wait(timeout)
        return self._exit

    def signal(self, number: int) -> None:
        if not self._ended.is_set():
            self._instance.tell(Kind.SIGNAL, self._number, number)

    def kill_tree(self) -> None:
        if self._group is not None:
            self._group.kill()
        else:
            self._instance.ask(Kind.KILL, self._number)
        self._ended.wait()

    def await_start(self, command: Command) -> None:
        """Wait until the program runs.

        Raises:
            FluxError: why it does not.
        """
        self._answered.wait()
        if self._refused is not None:
            raise refusal(command, self._refused)
        if self._pid is None:
            raise FluxError(Code.UNAVAILABLE, "cannot run the command: the sandbox ended; start it again")

    def hear(self, message: Message) -> None:
        """Take note of a message of the init about this command."""
        if message.kind == Kind.SPAWNED:
            self._pid = message.value
        elif message.kind == Kind.REFUSED:
            self._refused = message
        elif message.kind == Kind.EXITED:
            self._end(exit_of(message.value))
        self._answered.set()

    def lose(self) -> None:
        """Take note that the sandbox is gone, and with it this command."""
        if not self._ended.is_set():
            self._end(KILLED)
        self._answered.set()

    def _end(self, how: Exit) -> None:
        self._exit = how
        self._ended.set()
        if self._group is not None:
            self._instance.group_ended(self._group)
