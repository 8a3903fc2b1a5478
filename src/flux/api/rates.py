"""Who asks too often: per key, per sandbox for its data plane, and per address for keys that do not exist."""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from flux.core import rates
from flux.core.errors import Code, FluxError
from flux.core.rates import Bucket, Rate

if TYPE_CHECKING:
    from flux.core.access import Actor

#: Who asked longest ago is forgotten first: it begins with a full bucket again.
SUBJECTS_MAX = 16384
#: Wrong keys and tokens of one address. A key has 192 random bits; this keeps the log and the store quiet.
GUESSES = Rate(per_second=1.0, burst=100)
_KNOWN_MAX = 4096
_NETWORK_BITS = 64


class Rates:
    """Keeps one bucket for each subject. Thread-safe.

    Args:
        name: what is bounded, for the refusal: "requests of this key".
        rate: the bound; ``None``: there is none.
        clock: seconds that only go forward.
    """

    def __init__(self, name: str, rate: Rate | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def check(self, subject: str) -> None:
        """Let one request of a subject pass.

        Raises:
            FluxError: ``exhausted`` with ``details`` ``rate`` and ``retry_after_seconds``: 429 over HTTP.
        """
        self._decide(subject, take=True)

    def peek(self, subject: str) -> None:
        """Refuse as ``check`` does, but count nothing."""
        self._decide(subject, take=False)

    def __len__(self) -> int:
        return len(self._buckets)

    def _decide(self, subject: str, *, take: bool) -> None:
        rate = self._rate
        if rate is None:
            return
        with self._lock:
            now = self._clock()
            verdict = rates.take(rate, self._buckets.get(subject) or rates.full(rate, now), now)
            if take:
                self._keep(subject, verdict.bucket)
        if not verdict.passes:
            raise _too_often(self._name, rate, verdict.retry_after_seconds)

    def _keep(self, subject: str, bucket: Bucket) -> None:
        self._buckets[subject] = bucket
        self._buckets.move_to_end(subject)
        if len(self._buckets) > SUBJECTS_MAX:
            self._buckets.popitem(last=False)


class Guesses:
    """Bounds how many wrong keys an address may try. Thread-safe.

    An address that has tried too many is refused before its next key is looked at. A key that was right lately passes
    all the same: behind a proxy everybody has one address, and one bad caller must not shut out the others.
    """

    def __init__(self, rate: Rate | None = GUESSES, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates = Rates("wrong keys of this address", rate, clock)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def authenticate(self, address: str | None, secret: str, authenticate: Callable[[str], Actor]) -> Actor:
        """Return whose ``secret`` it is, as ``authenticate`` tells.

        Args:
            address: where the caller is; ``None``: it is not bounded.
            secret: the key or token.
            authenticate: knows; raises ``unauthenticated``.

        Raises:
            FluxError: ``exhausted`` after too many wrong ones; what ``authenticate`` raises.
        """
        subject = None if address is None else network_of(address)
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        if subject is not None and not self._knows(digest):
            self._rates.peek(subject)
        try:
            actor = authenticate(secret)
        except FluxError as error:
            if subject is not None and error.code is Code.UNAUTHENTICATED:
                self._forget(digest)
                self._rates.check(subject)
            raise
        self._remember(digest)
        return actor

    def _knows(self, digest: bytes) -> bool:
        with self._lock:
            return digest in self._known

    def _remember(self, digest: bytes) -> None:
        with self._lock:
            self._known[digest] = None
            self._known.move_to_end(digest)
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)

    def _forget(self, digest: bytes) -> None:
        with self._lock:
            self._known.pop(digest, None)


class RequestRates(msgspec.Struct, frozen=True):
    """All bounds of a daemon. ``keys`` by key id, ``sandboxes`` by sandbox id, ``guesses`` by address."""

    keys: Rates
    sandboxes: Rates
    guesses: Guesses

    def check_actor(self, actor: Actor) -> None:
        """Count a request of whoever has a key; the administrator at the socket has none, and no bound."""
        if actor.key_id is not None:
            self.keys.check(actor.key_id)

    def check_sandbox(self, sandbox_id: str) -> None:
        """Count a request to the data plane of a sandbox."""
        self.sandboxes.check(sandbox_id)


def request_rates(key: Rate | None = None, sandbox: Rate | None = None, guesses: Rate | None = GUESSES) -> RequestRates:
    """Return the bounds of a daemon; ``None`` is no bound."""
    return RequestRates(
        Rates("requests of this key", key), Rates("requests to this sandbox", sandbox), Guesses(guesses)
    )


def network_of(address: str) -> str:
    """Return whom an address belongs to: one of version 4 to itself, of version 6 everything in its /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    if mapped.version == 4:
        return str(mapped)
    return str(ipaddress.ip_network((mapped, _NETWORK_BITS), strict=False))


def _too_often(name: str, rate: Rate, seconds: int) -> FluxError:
    return FluxError(
        Code.EXHAUSTED,
        f"cannot take more {name}: it is allowed {rate.per_second:g} a second and {rate.burst} at once; nothing was "
        f"changed, try again in {seconds} s",
        {"rate": name, "retry_after_seconds": seconds},
    )
