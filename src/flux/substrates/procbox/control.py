"""The words between Flux and a sandbox's init: a fixed header, a text, descriptors (``launcher/wire.c``)."""

from __future__ import annotations

import _socket
import os
import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

from flux.core.errors import Code, FluxError
from flux.core.paths import to_bytes
from flux.ports.substrate import Command

_HEADER = struct.Struct("=IIi")
_TEXT_BYTES_MAX = 512
_DESCRIPTORS_MAX = 64
_COMMAND = struct.Struct("=5I")
_INT = struct.calcsize("i")


class Kind(IntEnum):
    """What a message says. Up to 15 from Flux to the launcher or init, from 16 on the other way."""

    START = 1
    SPAWN = 3
    SIGNAL = 4
    FREEZE = 5
    THAW = 6
    KILL = 7
    STARTED = 16
    READY = 18
    FAILED = 19
    SPAWNED = 20
    REFUSED = 21
    EXITED = 22
    DONE = 23


class Spawn(IntFlag):
    """How a command is to be found again with all that comes from it."""

    INTO = 1
    JOIN = 2
    KEEPER = 4


class Message(NamedTuple):
    """One message: ``id`` of the command it is about, a number, a text, descriptors that the receiver owns."""

    kind: int
    id: int
    value: int
    text: str
    descriptors: list[int]


class Channel:
    """One end of the control socket; messages arrive whole and in order."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = end

    def send(self, kind: Kind, *, id: int = 0, value: int = 0, descriptors: Sequence[int] = ()) -> None:
        """Send a message; the receiver gets copies of the descriptors.

        Raises:
            OSError: the other side is gone.
        """
        header = _HEADER.pack(kind, id, value)
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else []
        self._end.sendmsg([header], extra, _socket.MSG_NOSIGNAL)

    def receive(self) -> Message | None:
        """Wait for a message; ``None`` when the other side is gone."""
        try:
            data, extra, _, _ = self._end.recvmsg(
                _HEADER.size + _TEXT_BYTES_MAX,
                _socket.CMSG_SPACE(_DESCRIPTORS_MAX * _INT),
                _socket.MSG_CMSG_CLOEXEC,
            )
        except OSError:
            return None
        descriptors: list[int] = []
        for _, _, rights in extra:
            descriptors += struct.unpack(f"{len(rights) // _INT}i", rights)
        if len(data) < _HEADER.size:
            return None
        kind, identity, value = _HEADER.unpack_from(data)
        return Message(kind, identity, value, data[_HEADER.size :].decode("utf-8", "replace"), descriptors)

    def close(self) -> None:
        """Close this end: an init ends with it, and everything in its sandbox."""
        self._end.close()


def pair() -> tuple[Channel, int]:
    """Return Flux's end of a new control socket, and a descriptor of the other end that the caller closes."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC, 0)
    return Channel(ours), theirs.detach()


def encode_words(words: Sequence[str]) -> bytes:
    """Return NUL-terminated words.

    Raises:
        FluxError: ``invalid`` if one holds a NUL byte.
    """
    joined = "\0".join(words)
    if joined.count("\0") != len(words) - 1:
        raise FluxError(Code.INVALID, "cannot start the sandbox: a path or a name holds a NUL byte")
    return to_bytes(joined) + b"\0"


def encode_command(command: Command) -> bytes:
    """Return a command as ``launcher/spawn.c`` reads it.

    Raises:
        FluxError: ``invalid`` for no argument at all, or a NUL byte in a string.
    """
    environment = [f"{name}={value}" for name, value in command.environment.items()]
    strings = [command.cwd, *command.argv, *environment]
    joined = "\0".join(strings)
    if not command.argv or not command.argv[0] or joined.count("\0") != len(strings) - 1:
        raise FluxError(
            Code.INVALID, "cannot run the command: the program's name is empty, or an argument holds a NUL byte"
        )
    numbers = (command.uid, command.gid, int(command.terminal), len(command.argv), len(environment))
    return _COMMAND.pack(*numbers) + to_bytes(joined) + b"\0"


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content`` at the descriptor's position."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def abandon(descriptor: int) -> None:
    """Close a descriptor whose last close is slow, without waiting for it: the kernel's garbage collection does it.

    A socket that lies in its own queue is garbage, and what lies beside it goes the same way. An older kernel collects
    at once; then this takes as long as a plain close.
    """
    reader, writer = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC, 0)
    rights = struct.pack("2i", reader.fileno(), descriptor)
    writer.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    os.close(descriptor)
    reader.close()
    writer.close()
