"""Who listens to a process: all hear the same, the slowest sets the pace, and whoever leaves is let go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import msgspec
from anyio import BrokenResourceError, ClosedResourceError, WouldBlock, create_memory_object_stream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

Output: TypeAlias = Literal["stdout", "stderr", "pty"]

#: Pieces of output that a listener may be behind.
_AHEAD_MAX = 4


class Piece(msgspec.Struct, frozen=True):
    """Some output."""

    output: Output
    data: bytes


class Listener:
    """One who listens; iterating ends when the process is over and all that it said was heard."""

    def __init__(self, pieces: MemoryObjectReceiveStream[Piece]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._pieces


class Hub:
    """Passes the output of one process on."""

    def __init__(self) -> None:
        self._listeners: list[MemoryObjectSendStream[Piece]] = []
        self._at_end: list[Callable[[], None]] = []
        self._over = False

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def when_over(self, action: Callable[[], None]) -> None:
        """Have something done when the process is over and all was passed on."""
        self._at_end.append(action)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Hear everything from now on, until the block is left."""
        sender, receiver = create_memory_object_stream[Piece](_AHEAD_MAX)
        if self._over:
            sender.close()
        else:
            self._listeners.append(sender)
        try:
            yield Listener(receiver)
        finally:
            receiver.close()
            if sender in self._listeners:
                self._listeners.remove(sender)
            sender.close()

    async def publish(self, piece: Piece) -> None:
        """Return when every listener has taken the piece, or is gone."""
        for listener in tuple(self._listeners):
            try:
                await _send(listener, piece)
            except (BrokenResourceError, ClosedResourceError):  # it left, perhaps while another one was waited for
                self._let_go(listener)

    def _let_go(self, listener: MemoryObjectSendStream[Piece]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
        listener.close()

    def end(self) -> None:
        """Tell the listeners that there is no more."""
        self._over = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        for action in self._at_end:
            action()


async def _send(listener: MemoryObjectSendStream[Piece], piece: Piece) -> None:
    try:
        listener.send_nowait(piece)
    except WouldBlock:
        await listener.send(piece)
