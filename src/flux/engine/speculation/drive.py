"""Runs a command in a throwaway execution until it, its time or the disk ends; then everything in it is dead."""

from __future__ import annotations

import time

import msgspec

from flux.core.changeset import Output
from flux.engine.lifecycle.streams import Streams
from flux.engine.speculation.guard import DiskGuard
from flux.ports.substrate import Command, Exit, Instance

_LOOK_SECONDS = 0.25
_KILLED = Exit(signal=9)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the command ended. Exactly one of ``exit_code`` and ``signal`` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    stdout: Output
    stderr: Output


def drive(
    instance: Instance, command: Command, *, timeout_seconds: float, output_bytes: int, guard: DiskGuard
) -> Outcome:
    """Run ``command`` and return when every process of the execution is dead (spec: speculation).

    Raises:
        FluxError: ``exhausted`` if the disk ran full; what ``Instance.spawn`` raises.
    """
    streams = Streams(output_bytes)
    try:
        process = instance.spawn(command, *streams.child)
    except BaseException:
        streams.abandon()
        raise
    streams.start()
    started = time.monotonic()
    ended: Exit | None = None
    try:
        while ended is None and (left := started + timeout_seconds - time.monotonic()) > 0:
            ended = process.wait(min(left, _LOOK_SECONDS))
            if ended is None:
                guard.check()
        duration = time.monotonic() - started
    finally:
        instance.kill()
        stdout, stderr = streams.finish()
    result = ended or _KILLED
    return Outcome(
        exit_code=result.code,
        signal=result.signal,
        timed_out=ended is None,
        duration_ms=int(duration * 1000),
        stdout=stdout,
        stderr=stderr,
    )
