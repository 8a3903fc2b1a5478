"""How often somebody may ask: the bucket as a table of cases, and the bounds over many subjects (spec: e2b, E8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from flux.api import rates as api_rates
from flux.api.rates import Guesses, Rates, network_of
from flux.core.access import Actor, Role
from flux.core.errors import Code, FluxError
from flux.core.rates import Bucket, Rate, Verdict, take

TWO = Rate(per_second=2.0, burst=4)
SLOW = Rate(per_second=0.1, burst=1)


@pytest.mark.parametrize(
    ("rate", "bucket", "now", "expected"),
    [
        (TWO, Bucket(4.0, 10.0), 10.0, Verdict(bucket=Bucket(3.0, 10.0), passes=True)),
        (TWO, Bucket(1.0, 10.0), 10.0, Verdict(bucket=Bucket(0.0, 10.0), passes=True)),
        (TWO, Bucket(0.0, 10.0), 10.5, Verdict(bucket=Bucket(0.0, 10.5), passes=True)),
        (TWO, Bucket(0.0, 10.0), 99.0, Verdict(bucket=Bucket(3.0, 99.0), passes=True)),
        (TWO, Bucket(0.0, 10.0), 10.0, Verdict(bucket=Bucket(0.0, 10.0), passes=False, retry_after_seconds=1)),
        (TWO, Bucket(0.5, 10.0), 9.0, Verdict(bucket=Bucket(0.5, 10.0), passes=False, retry_after_seconds=1)),
        (SLOW, Bucket(0.0, 0.0), 0.0, Verdict(bucket=Bucket(0.0, 0.0), passes=False, retry_after_seconds=10)),
        (SLOW, Bucket(0.0, 0.0), 5.0, Verdict(bucket=Bucket(0.5, 5.0), passes=False, retry_after_seconds=5)),
    ],
)
def test_a_bucket(rate: Rate, bucket: Bucket, now: float, expected: Verdict) -> None:
    assert take(rate, bucket, now) == expected


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(rates: Rates, subject: str) -> FluxError:
    with pytest.raises(FluxError) as caught:
        rates.check(subject)
    return caught.value


def test_a_subject_is_refused_until_its_bucket_has_refilled_and_others_are_not() -> None:
    clock = Hand()
    rates = Rates("requests of this key", Rate(per_second=0.5, burst=2), clock)
    rates.check("a")
    rates.check("a")
    error = refused(rates, "a")
    assert (error.code, error.details) == (
        Code.EXHAUSTED,
        {"rate": "requests of this key", "retry_after_seconds": 2},
    )
    rates.check("b")
    clock.now += 2
    rates.check("a")
    refused(rates, "a")


def test_no_rate_is_no_bound_and_remembers_nobody() -> None:
    rates = Rates("requests", None)
    for _ in range(100):
        rates.check("a")
    assert len(rates) == 0


def test_the_number_of_subjects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_rates, "SUBJECTS_MAX", 3)
    rates = Rates("requests", Rate(per_second=0.1, burst=1), Hand())
    for subject in ("a", "b", "c", "d"):
        rates.check(subject)
    assert len(rates) == 3
    rates.check("a")
    refused(rates, "d")


def test_as_many_pass_as_the_burst_allows_however_many_ask_at_once() -> None:
    rates = Rates("requests", Rate(per_second=1.0, burst=50), Hand())

    def ask(_: int) -> bool:
        try:
            rates.check("a")
        except FluxError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(400))) == 50


def known(secret: str) -> Actor:
    if secret not in ("right", "other"):
        raise FluxError(Code.UNAUTHENTICATED, "cannot tell who you are: a wrong key")
    return Actor(name=secret, role=Role.USER)


def test_wrong_keys_of_an_address_are_bounded_and_then_no_new_key_is_looked_at() -> None:
    clock = Hand()
    guesses = Guesses(Rate(per_second=1.0, burst=3), clock)
    assert guesses.authenticate("192.0.2.1", "right", known).name == "right"
    codes = []
    for attempt in range(5):
        with pytest.raises(FluxError) as caught:
            guesses.authenticate("192.0.2.1", f"wrong {attempt}", known)
        codes.append(caught.value.code)
    assert codes == [Code.UNAUTHENTICATED] * 3 + [Code.EXHAUSTED] * 2

    with pytest.raises(FluxError) as caught:
        guesses.authenticate("192.0.2.1", "other", known)
    assert caught.value.details["retry_after_seconds"] == 1
    assert guesses.authenticate("192.0.2.1", "right", known).name == "right"
    assert guesses.authenticate("192.0.2.2", "other", known).name == "other"
    assert guesses.authenticate(None, "other", known).name == "other"
    clock.now += 1
    assert guesses.authenticate("192.0.2.1", "right", known).name == "right"


def test_a_key_that_was_right_and_is_revoked_counts_as_a_wrong_one() -> None:
    guesses = Guesses(Rate(per_second=1.0, burst=1), Hand())
    guesses.authenticate("192.0.2.1", "right", known)

    def nobody(secret: str) -> Actor:
        raise FluxError(Code.UNAUTHENTICATED, "cannot tell who you are: it was revoked")

    codes = []
    for _ in range(2):
        with pytest.raises(FluxError) as caught:
            guesses.authenticate("192.0.2.1", "right", nobody)
        codes.append(caught.value.code)
    assert codes == [Code.UNAUTHENTICATED, Code.EXHAUSTED]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_whose_an_address_is(address: str, expected: str) -> None:
    assert network_of(address) == expected
