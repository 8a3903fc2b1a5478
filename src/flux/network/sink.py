"""The end of the line for sandboxes without network: every packet is recorded and refused (spec: network).

A sandbox without network has a default route into a TUN device. Flux holds its descriptor, reads what the sandbox
sends and answers so that programs fail at once instead of waiting. Nothing is ever passed on.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from enum import Enum

from flux.core.changeset import Flow
from flux.core.errors import Code, FluxError
from flux.network.flows import RefusedFlows
from flux.network.packets import parse_packet, refusal
from flux.ports.network import FlowSource

_PACKET_BYTES_MAX = 65535
#: The kernel queues this many packets of a TUN device (TUN_READQ_SIZE) and drops what comes on top.
_QUEUE_PACKETS = 500
#: A source that is never found empty rests after this many packets, so that it cannot occupy the process.
_FLOOD_PACKETS = 4096
_TURN_PACKETS = 64
_REST_SECONDS = 0.02


class _Turn(Enum):
    """How reading from a device went."""

    READ = 1
    FLOODED = 2
    GONE = 3


class TunSink:
    """Serves all sandboxes without network of this process with one daemon thread, started with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poll: select.epoll | None = None
        self._sources: dict[int, _Source] = {}
        self._resting: set[int] = set()

    def attach(self, descriptor: int) -> FlowSource:
        """Record and refuse what comes out of a TUN descriptor; see ``ports.network.PacketSink``.

        Raises:
            FluxError: ``unavailable`` if the descriptor cannot be watched.
        """
        source = _Source(self, descriptor)
        try:
            os.set_blocking(descriptor, False)
            with self._lock:
                poll = self._started()
                self._sources[descriptor] = source
                poll.register(descriptor, select.EPOLLIN)
        except OSError as error:
            source.close()
            raise FluxError(Code.UNAVAILABLE, f"cannot watch a sandbox's network: {error}") from error
        return source

    def forget(self, descriptor: int, source: _Source) -> None:
        """Stop watching a descriptor that is about to be closed, unless its number is another source's by now."""
        with self._lock:
            if self._sources.get(descriptor) is source and self._poll is not None:
                del self._sources[descriptor]
                self._resting.discard(descriptor)
                with contextlib.suppress(OSError):
                    self._poll.unregister(descriptor)

    def _started(self) -> select.epoll:
        if self._poll is None:
            self._poll = select.epoll()
            threading.Thread(target=self._serve, args=(self._poll,), name="flux-packet-sink", daemon=True).start()
        return self._poll

    def _serve(self, poll: select.epoll) -> None:
        while True:
            ready = poll.poll(_REST_SECONDS if self._resting else None)
            for descriptor, _ in ready:
                source = self._sources.get(descriptor)
                if source is None:
                    continue
                turn = source.read(_TURN_PACKETS)
                if turn is _Turn.GONE:
                    self.forget(descriptor, source)
                elif turn is _Turn.FLOODED:
                    self._watch(poll, descriptor, rest=True)
            if self._resting and not ready:
                for descriptor in tuple(self._resting):
                    self._watch(poll, descriptor, rest=False)

    def _watch(self, poll: select.epoll, descriptor: int, *, rest: bool) -> None:
        with self._lock:
            if descriptor in self._sources:
                poll.modify(descriptor, 0 if rest else select.EPOLLIN)
                (self._resting.add if rest else self._resting.discard)(descriptor)


class _Source:
    """One sandbox's device and record."""

    def __init__(self, sink: TunSink, descriptor: int) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._descriptor = descriptor
        self._flows = RefusedFlows()
        self._unbroken = 0

    def flows(self) -> list[Flow]:
        """Return the record, with what is still in the device's queue."""
        self.read(2 * _QUEUE_PACKETS)
        with self._lock:
            return self._flows.flows()

    def close(self) -> None:
        """Read what is left, then give the device up."""
        self.read(2 * _QUEUE_PACKETS)
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._sink.forget(descriptor, self)
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def read(self, most: int) -> _Turn:
        """Take up to ``most`` packets from the queue."""
        with self._lock:
            for _ in range(most):
                if self._descriptor < 0:
                    return _Turn.READ
                try:
                    packet = os.read(self._descriptor, _PACKET_BYTES_MAX)
                except OSError as error:
                    self._unbroken = 0
                    return _Turn.READ if isinstance(error, BlockingIOError) else _Turn.GONE
                self._take(packet)
            if self._unbroken < _FLOOD_PACKETS:
                return _Turn.READ
            self._unbroken = 0
            return _Turn.FLOODED

    def _take(self, packet: bytes) -> None:
        self._unbroken += 1
        # A queue that was full at any time takes at least its length in reads until it is found empty.
        if self._unbroken >= _QUEUE_PACKETS:
            self._flows.lost()
        attempt = parse_packet(packet)
        if attempt is not None:
            self._flows.add(attempt)
        answer = refusal(packet)
        if answer is not None:
            # The device may be down or gone already; then nobody waits for the answer.
            with contextlib.suppress(OSError):
                os.write(self._descriptor, answer)
