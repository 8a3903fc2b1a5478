"""Killed at, or failed by, each single call of an apply: recovery leaves the tree before or after, nothing between."""

from __future__ import annotations

import errno
import signal

import pytest

from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.testing.crash import Nth, count, die, fail, in_child
from tests.crash.scenario import Scenario, apply_with_marker, check, is_committed


@pytest.fixture(scope="module")
def calls(scenario: Scenario) -> int:
    staging = scenario.fresh()
    number = count(lambda: apply_with_marker(staging))
    check(scenario, staging)
    assert is_committed(staging)
    scenario.discard(staging)
    return number


def test_killed_at_every_call(scenario: Scenario, calls: int) -> None:
    for number in range(1, calls + 1):
        staging = scenario.fresh()
        assert in_child(lambda staging=staging: apply_with_marker(staging), Nth(number, die)) == -signal.SIGKILL
        recovery = staging.recover(committed=is_committed(staging))
        assert not recovery.problems, (number, recovery)
        check(scenario, staging)
        assert staging.recover(committed=is_committed(staging)).problems == []
        check(scenario, staging)
        scenario.discard(staging)


def test_killed_again_in_recovery(scenario: Scenario, calls: int) -> None:
    for number in range(5, calls + 1, 7):
        again = 1
        while True:
            staging = scenario.fresh()
            assert in_child(lambda staging=staging: apply_with_marker(staging), Nth(number, die)) == -signal.SIGKILL
            committed = is_committed(staging)
            ended = in_child(
                lambda staging=staging, committed=committed: staging.recover(committed=committed), Nth(again, die)
            )
            assert ended in (0, -signal.SIGKILL)
            recovery = staging.recover(committed=committed)
            assert not recovery.problems, (number, again, recovery)
            check(scenario, staging)
            scenario.discard(staging)
            if ended == 0:
                break
            again += 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_every_call_fails_once(scenario: Scenario, calls: int, number: int) -> None:
    for at in range(1, calls + 1):
        staging = scenario.fresh()
        try:
            with armed(Nth(at, fail(number))):
                apply_with_marker(staging)
        except FluxError as error:
            assert error.code in (Code.EXHAUSTED, Code.UNAVAILABLE), (at, error)
            assert not is_committed(staging)
        except OSError as error:
            assert error.filename == Point.APPLY_COMMIT.value
        else:
            assert is_committed(staging), at
            staging.recover(committed=True)
        check(scenario, staging)
        scenario.discard(staging)


def test_the_disk_stays_full(scenario: Scenario, calls: int) -> None:
    """Rolling back needs no space: it works while everything else fails."""
    for at in range(1, calls + 1):
        staging = scenario.fresh()
        full = Nth(at, fail(errno.ENOSPC), onwards=True, spared=[Point.ROLLBACK, Point.APPLY_CLEAN])
        try:
            with armed(full):
                apply_with_marker(staging)
        except FluxError as error:
            assert error.code is Code.EXHAUSTED, (at, error)
        check(scenario, staging)
        scenario.discard(staging)


def test_the_disk_dies_and_is_mended(scenario: Scenario, calls: int) -> None:
    for at in range(1, calls + 1, 3):
        staging = scenario.fresh()
        try:
            with armed(Nth(at, fail(errno.EIO), onwards=True)):
                apply_with_marker(staging)
        except (FluxError, OSError) as error:
            assert not is_committed(staging)
            assert isinstance(error, OSError) or error.code in (Code.UNAVAILABLE, Code.UNKNOWN_OUTCOME)
        assert staging.recover(committed=is_committed(staging)).problems == []
        check(scenario, staging)
        scenario.discard(staging)
