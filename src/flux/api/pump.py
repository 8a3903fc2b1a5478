"""Carries a command's streams between its pipes or terminal and descriptors of this process.

The command never gets the caller's own descriptors: an open file or terminal would be a way out of the sandbox.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flux.engine.lifecycle.execute import RunningExec
    from flux.engine.results import Ended

_CHUNK_BYTES = 64 * 1024
_END_OF_INPUT = b"\x04"


class Pump:
    """Carries the streams of one command until it ends, and closes its ends of them.

    Args:
        running: the command.
        stdin: where its input is read; ``None``: it has none.
        stdout: where its output, or all that its terminal shows, is written.
        stderr: where its error output is written.
    """

    def __init__(self, running: RunningExec, stdin: int | None, stdout: int, stderr: int) -> None:
        self._running = running
        self._source = stdin
        self._feed = running.stdin if running.terminal is None else running.terminal
        self._pending = b""
        pairs = ((running.terminal, stdout), (running.stdout, stdout), (running.stderr, stderr))
        self._outputs = {source: target for source, target in pairs if source is not None}
        self._ended: Ended | None = None
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC)

    def run(self) -> Ended | None:
        """Carry until the command has ended and its last byte is written; return how it ended."""
        waiter = threading.Thread(target=self._await_end, name="flux-wait", daemon=True)
        waiter.start()
        try:
            self._carry()
        except BaseException:
            self._running.kill()
            raise
        finally:
            waiter.join()
            self._close()
        return self._ended

    def _await_end(self) -> None:
        try:
            self._ended = self._running.wait()
        finally:
            os.write(self._waker, b"!")

    def _carry(self) -> None:
        if self._feed is not None:
            os.set_blocking(self._feed, False)
        if self._source is None:
            self._end_input()
        while True:
            ready = self._wait()
            for descriptor in ready & self._outputs.keys():
                self._take(descriptor, _CHUNK_BYTES)
            if self._pending:
                self._push()
            elif self._source in ready:
                self._pull()
            if self._wake in ready:
                return self._take_rest()

    def _wait(self) -> set[int]:
        """Wait until something can be done; return the descriptors that have something to read."""
        poll = select.poll()
        for descriptor in (self._wake, *self._outputs):
            poll.register(descriptor, select.POLLIN)
        if self._feed is not None and self._pending:
            poll.register(self._feed, select.POLLOUT | (select.POLLIN if self._feed in self._outputs else 0))
        elif self._feed is not None and self._source is not None:
            poll.register(self._source, select.POLLIN)
        return {descriptor for descriptor, event in poll.poll() if event & ~select.POLLOUT}

    def _pull(self) -> None:
        """Read the caller's input; only when the last of it is written, so that none piles up."""
        self._pending = b"" if self._source is None else _read(self._source, _CHUNK_BYTES)
        if not self._pending:
            self._source = None
            self._end_input()

    def _push(self) -> None:
        if self._feed is None:
            return
        try:
            self._pending = self._pending[os.write(self._feed, self._pending) :]
        except BlockingIOError:
            return
        except OSError:
            # The command reads no more; what is left of the input is nobody's.
            self._pending, self._source = b"", None
            self._end_input()

    def _end_input(self) -> None:
        """Let the command see the end of its input; at a terminal by the character that means it."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        if feed in self._outputs:
            os.write(feed, _END_OF_INPUT)
        else:
            os.close(feed)

    def _take(self, source: int, most: int) -> int:
        """Carry some output on; return how much, 0 at its end."""
        data = _read(source, most)
        if not data:
            self._drop(source)
            return 0
        view = memoryview(data)
        while view:
            view = view[os.write(self._outputs[source], view) :]
        return len(data)

    def _take_rest(self) -> None:
        """Carry on what is in the pipes now that the command has ended; more is a background process's."""
        for source in list(self._outputs):
            (left,) = struct.unpack("i", fcntl.ioctl(source, termios.FIONREAD, b"\0\0\0\0"))
            while left > 0 and source in self._outputs:
                left -= self._take(source, min(left, _CHUNK_BYTES))

    def _drop(self, source: int) -> None:
        del self._outputs[source]
        if source == self._feed:
            self._feed = None
        os.close(source)

    def _close(self) -> None:
        """Close what is still open."""
        if self._feed is not None and self._feed not in self._outputs:
            os.close(self._feed)
        for descriptor in (self._wake, self._waker, *self._outputs):
            os.close(descriptor)


def _read(descriptor: int, most: int) -> bytes:
    """Return what is there, nothing at the end; a terminal whose other side is closed reports an error for that."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        raise
    except OSError:
        return b""
