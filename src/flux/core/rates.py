"""How often somebody may ask: a token bucket, as a decision over a given time (spec: e2b, E8)."""

from __future__ import annotations

import math

import msgspec


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``burst`` requests at once, and ``per_second`` of them again every second. Both above 0."""

    per_second: float
    burst: int


class Bucket(msgspec.Struct, frozen=True):
    """How many requests were left at a moment, in seconds of a clock that only goes forward."""

    left: float
    at: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request may pass, what is left then, and after how many whole seconds the next one may if not."""

    bucket: Bucket
    passes: bool
    retry_after_seconds: int = 0


def full(rate: Rate, now: float) -> Bucket:
    """Return the bucket of somebody who asks for the first time."""
    return Bucket(float(rate.burst), now)


def refilled(rate: Rate, bucket: Bucket, now: float) -> Bucket:
    """Return a bucket as it is ``now``; a clock that went back gives nothing."""
    since = max(0.0, now - bucket.at)
    return Bucket(min(float(rate.burst), bucket.left + since * rate.per_second), max(now, bucket.at))


def take(rate: Rate, bucket: Bucket, now: float) -> Verdict:
    """Take one request out of a bucket. What is refused takes nothing, so that trying again costs nothing."""
    current = refilled(rate, bucket, now)
    if current.left >= 1.0:
        return Verdict(bucket=Bucket(current.left - 1.0, current.at), passes=True)
    wait = max(1, math.ceil((1.0 - current.left) / rate.per_second))
    return Verdict(bucket=current, passes=False, retry_after_seconds=wait)
