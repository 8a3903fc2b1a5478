"""Power is lost at each single call of an apply, and of its recovery: what was not synced is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat

import pytest

from flux.core.errors import FluxError
from flux.failpoints import Point, armed
from flux.testing.crash import Nth, count, die, fail, in_child
from flux.testing.powerloss import ForgetfulFiles
from flux.trees.apply import apply
from flux.trees.files import SystemFiles
from tests.crash.scenario import Scenario, check, is_committed
from tests.trees.kit import Facts, Staging, differences


def forgetful(staging: Staging) -> ForgetfulFiles:
    """Return files with a limbo on each file system."""
    limbos = []
    for place in (staging.world.home, staging.path.parent):
        (place / "limbo").mkdir(exist_ok=True)
        limbos.append(os.open(place / "limbo", os.O_RDONLY | os.O_DIRECTORY))
    return ForgetfulFiles(SystemFiles(), *limbos)


def without_directory_times(facts: Facts) -> Facts:
    """Leave out what the changeset does not carry."""
    return {path: (*fact[:6], None, *fact[7:]) if stat.S_ISDIR(fact[0]) else fact for path, fact in facts.items()}


def check_without_limbo(scenario: Scenario, staging: Staging) -> None:
    """Check the tree once nothing removed has a name in the limbo any more, which would count as a hard link."""
    for place in (staging.world.home, staging.path.parent):
        shutil.rmtree(place / "limbo", ignore_errors=True)
    check(scenario, staging)


def check_revert(scenario: Scenario, staging: Staging) -> None:
    """What a committed apply keeps for a revert is durable too."""
    if is_committed(staging):
        staging.inverse().apply()
        shutil.rmtree(staging.path / "trash")
        found = differences(without_directory_times(staging.world.look()), without_directory_times(scenario.before))
        assert not found, found


def apply_durably(staging: Staging, files: ForgetfulFiles) -> None:
    """Apply with a commit that is durable when it returns, as the engine's is."""
    job = staging.job(files=files)

    def commit() -> None:
        step = Point.CHANGESET_STATE
        os.close(files.create(step, job.directory, "committed.new"))
        files.rename(step, job.directory, "committed.new", job.directory, "committed")
        files.sync_file(step, job.directory)

    try:
        apply(job, commit)
    finally:
        os.close(job.directory)


def cut_at(number: int, files: ForgetfulFiles, surviving: float) -> Nth:
    """Lose power at a point, then end the process."""

    def effect(point: Point) -> None:
        files.cut(surviving)
        die(point)

    return Nth(number, effect)


def calls_of(scenario: Scenario) -> int:
    """Return how many points a durable apply reaches."""
    staging = scenario.fresh()
    number = count(lambda: apply_durably(staging, forgetful(staging)))
    scenario.discard(staging)
    return number


@pytest.mark.parametrize("surviving", [0.0, 0.5, 1.0])
def test_power_lost_at_every_call(scenario: Scenario, surviving: float) -> None:
    for number in range(1, calls_of(scenario) + 1):
        staging = scenario.fresh()
        files = forgetful(staging)
        ended = in_child(
            lambda staging=staging, files=files: apply_durably(staging, files), cut_at(number, files, surviving)
        )
        assert ended == -signal.SIGKILL
        recovery = staging.recover(committed=is_committed(staging))
        assert not recovery.problems, (number, recovery)
        check_without_limbo(scenario, staging)
        check_revert(scenario, staging)
        scenario.discard(staging)


@pytest.mark.parametrize("surviving", [0.0, 1.0])
def test_power_lost_again_in_recovery(scenario: Scenario, surviving: float) -> None:
    for number in range(11, calls_of(scenario) + 1, 23):
        again, ended = 0, -signal.SIGKILL
        while ended == -signal.SIGKILL:
            again += 1
            staging = scenario.fresh()
            first = forgetful(staging)
            in_child(
                lambda staging=staging, first=first: apply_durably(staging, first), cut_at(number, first, surviving)
            )
            second, committed = forgetful(staging), is_committed(staging)
            ended = in_child(
                lambda staging=staging, second=second, committed=committed: _recover(staging, second, committed),
                cut_at(again, second, surviving),
            )
            assert not staging.recover(committed=committed).problems, (number, again)
            check_without_limbo(scenario, staging)
            scenario.discard(staging)


@pytest.mark.parametrize("number", [30, 60, 10_000])
def test_power_lost_after_the_answer(scenario: Scenario, number: int) -> None:
    """What an apply, a roll back or a recovery answered stays true without another sync."""
    staging = scenario.fresh()
    files = forgetful(staging)

    def interrupted() -> None:
        with contextlib.suppress(FluxError), armed(Nth(number, fail(errno.EIO))):
            apply_durably(staging, files)
        files.cut(0)

    assert in_child(interrupted) == 0
    assert is_committed(staging) == (number == 10_000)
    check_without_limbo(scenario, staging)
    check_revert(scenario, staging)
    scenario.discard(staging)


def _recover(staging: Staging, files: ForgetfulFiles, committed: bool) -> None:
    staging.recover(committed=committed, files=files)
