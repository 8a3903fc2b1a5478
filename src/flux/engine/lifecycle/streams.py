"""A command's streams, carried by one thread in bounded memory whatever the command writes (spec: speculation)."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading

from flux.core.changeset import Output
from flux.core.output import output

_CHUNK = 1 << 16
_SPLICE = 1 << 20
_PIPE_FLAGS = os.O_CLOEXEC


class _Stream:
    """The reading end of one pipe: what is kept, and how much there was."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = bytearray()
        self.size = 0

    def take(self, most: int, nowhere: int) -> int:
        """Read at most ``most`` bytes; return how many there were, 0 at the end of the stream."""
        room = self.limit - len(self.kept)
        if room > 0:
            data = os.read(self.descriptor, min(most, room, _CHUNK))
            self.kept += data
            count = len(data)
        else:
            count = os.splice(self.descriptor, nowhere, min(most, _SPLICE))
        self.size += count
        return count

    def waiting(self) -> int:
        """Return how many bytes are in the pipe now."""
        (count,) = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.FIONREAD, struct.pack("i", 0)))
        return int(count)


class Streams:
    """Feeds a command's input and collects its output.

    ``child`` holds the command's own ends (stdin, stdout, stderr); ``start`` closes them here. Streams are read until
    every holder of the other end is gone, so that nothing left in the background ever blocks on them.

    Args:
        limit: how many bytes of each output are kept; the rest is counted.
        stdin: what the command can read; ``None``: nothing.
    """

    def __init__(self, limit: int, stdin: bytes | None = None) -> None:
        self._nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._wake, self._waker = os.pipe2(_PIPE_FLAGS)
        stdout, child_stdout = os.pipe2(_PIPE_FLAGS)
        stderr, child_stderr = os.pipe2(_PIPE_FLAGS)
        self._streams = (_Stream(stdout, limit), _Stream(stderr, limit))
        self._input = memoryview(stdin or b"")
        child_stdin, self._feed = os.pipe2(_PIPE_FLAGS) if stdin else (os.dup(self._nowhere), -1)
        if self._feed >= 0:
            os.set_blocking(self._feed, False)
        self.child = (child_stdin, child_stdout, child_stderr)
        self._settled = threading.Event()
        self._closing = threading.Lock()
        self._closed = False
        self._outputs: tuple[Output, Output] | None = None
        self._thread = threading.Thread(target=self._run, name="flux-streams", daemon=True)

    def start(self) -> None:
        """Begin to carry; the command has its ends by now."""
        self._close_child()
        self._thread.start()

    def abandon(self) -> None:
        """Close everything; the command could not be started."""
        self._close_child()
        self._close()

    def finish(self) -> tuple[Output, Output]:
        """Return all output up to the end of the streams; every process of the command is dead by now."""
        self._thread.join()
        return self._result()

    def settle(self) -> tuple[Output, Output]:
        """Return the output up to now, when the command itself has ended; what background children add is dropped."""
        with self._closing:
            if not self._closed:
                os.write(self._waker, b"!")
        self._settled.wait()
        return self._result()

    def _result(self) -> tuple[Output, Output]:
        if self._outputs is None:
            stdout, stderr = self._streams
            self._outputs = (output(bytes(stdout.kept), stdout.size), output(bytes(stderr.kept), stderr.size))
        return self._outputs

    def _close_child(self) -> None:
        for descriptor in self.child:
            os.close(descriptor)
        self.child = (-1, -1, -1)

    def _run(self) -> None:
        try:
            self._carry()
        finally:
            self._settled.set()
            self._close()

    def _carry(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        open_streams = {stream.descriptor: stream for stream in self._streams}
        for descriptor in open_streams:
            poll.register(descriptor, select.POLLIN)
        if self._feed >= 0:
            poll.register(self._feed, select.POLLOUT)
        while open_streams:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    poll.unregister(self._wake)
                    self._take_rest(open_streams)
                elif descriptor == self._feed:
                    self._write_input(poll)
                elif not open_streams[descriptor].take(_SPLICE, self._nowhere):
                    poll.unregister(descriptor)
                    del open_streams[descriptor]

    def _take_rest(self, open_streams: dict[int, _Stream]) -> None:
        """Take what is in the pipes at this moment, and call that the output."""
        for stream in open_streams.values():
            left = stream.waiting()
            while left > 0:
                left -= stream.take(left, self._nowhere)
        self._result()
        for stream in open_streams.values():
            stream.limit = 0
        self._settled.set()

    def _write_input(self, poll: select.poll) -> None:
        try:
            written = os.write(self._feed, self._input[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            written = len(self._input)
        self._input = self._input[written:]
        if not self._input:
            poll.unregister(self._feed)
            os.close(self._feed)
            self._feed = -1

    def _close(self) -> None:
        owned = [self._wake, self._waker, self._nowhere, *(stream.descriptor for stream in self._streams)]
        with self._closing:
            self._closed = True
            for descriptor in [*owned, self._feed] if self._feed >= 0 else owned:
                os.close(descriptor)
