"""The invariants of generations (§10): each holds over what is explored, and is missed when its guard is taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from flux.control import answers, ask, transitions
from flux.control.answers import Answer
from flux.core import fence
from flux.core.node import Activate
from flux.engine.node import activate
from flux.engine.node.node import Node
from flux.store import artifact_rows, fences, sandboxes
from flux.testing.explorer import invariants
from flux.testing.explorer.machine import ModelExecutions
from flux.testing.explorer.scenarios import (
    COLLECT,
    CONNECT,
    CREATE,
    EVICT,
    KILL,
    PAUSE,
    POD_DELETED,
    SCENARIOS,
    SWEEP,
    UPLOAD,
    Scenario,
    named,
)
from flux.testing.explorer.search import Budget, Exhaustive, Found, Report, every_walk, replay
from flux.testing.explorer.world import Rules, World

#: What the quick run looks at: so many states of each, with one fault anywhere.
QUICK = ("wake", "pause", "evict", "kill", "pod-deleted", "two-nodes")
QUICK_STATES = 1500


def _broken(
    monkeypatch: pytest.MonkeyPatch,
    scenario: Scenario,
    invariant: invariants.Invariant,
    budget: Budget | None = None,
) -> Found:
    """Explore with one invariant only, until it does not hold without its guard.

    The schedule that is told breaks it again; with the guard back in its place it breaks nothing.
    """

    def make() -> World:
        return scenario.make((invariant,), wakes=False)

    report = Exhaustive(scenario.name, make, budget or Budget(faults=0, seconds=60)).run()
    assert report.found is not None, f"{invariant.__name__} holds without its guard: {report}"
    assert report.found.invariant == invariant.__name__, str(report.found)
    done, violated = replay(make, report.found.schedule)
    assert (tuple(done), getattr(violated, "invariant", None)) == (report.found.schedule, invariant.__name__)
    monkeypatch.undo()
    assert replay(make, report.found.schedule)[1] is None
    return report.found


@pytest.fixture(scope="module")
def explored() -> tuple[list[Report], Counter[str]]:
    checks: Counter[str] = Counter()
    reports = []
    for name in QUICK:
        make = partial(named(name).make, checks=checks)
        reports.append(Exhaustive(name, make, Budget(faults=1, states=QUICK_STATES)).run())
        reports.append(every_walk(name, make, seeds=range(8), seconds=30))
    return reports, checks


def _holds(explored: tuple[list[Report], Counter[str]], invariant: invariants.Invariant) -> None:
    reports, checks = explored
    assert [str(report.found) for report in reports if report.found is not None] == []
    assert checks[invariant.__name__] > 0
    assert sum(report.states for report in reports) > len(QUICK) * QUICK_STATES // 2


@pytest.mark.parametrize("invariant", invariants.ALL, ids=lambda invariant: invariant.__name__)
def test_it_holds_in_every_order_with_one_fault_anywhere(
    explored: tuple[list[Report], Counter[str]], invariant: invariants.Invariant
) -> None:
    _holds(explored, invariant)


def test_i1_at_most_one_live_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: nothing is minted before the predecessor is settled (§9.0)."""

    def settled(*_: Any) -> Generator[Any, Any, tuple[bool, None]]:
        yield from ()
        return True, None

    monkeypatch.setattr(ask, "settled", settled)
    monkeypatch.setattr(answers, "of", _unknown_as(Answer.FAILED))
    scenario = Scenario(
        name="unsettled",
        before=(CREATE, PAUSE, UPLOAD, SWEEP),
        begins=(CONNECT,),
        rules=Rules(lose=True),
        nodes=2,
        uploads=True,
    )
    _broken(monkeypatch, scenario, invariants.i1_at_most_one_live_execution, Budget(faults=1, switches=1, seconds=60))


def _unknown_as(answer: Answer) -> Callable[..., Answer]:
    honest = answers.of
    return lambda error, store: answer if honest(error, store) is Answer.UNKNOWN else honest(error, store)


def test_i2_generations_never_go_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: a generation at or below what was claimed is refused (§5.1)."""
    monkeypatch.setattr(fence, "_fenced", lambda *_: None)
    scenario = Scenario(
        name="late", before=(CREATE, PAUSE), begins=(CONNECT, PAUSE, CONNECT, PAUSE), rules=Rules(repeat=True)
    )
    _broken(monkeypatch, scenario, invariants.i2_generations_never_go_down, Budget(faults=1, switches=1, seconds=60))


def test_i3_rolled_back_attempts_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: the refusal of attempts that ended (§5.1)."""
    monkeypatch.setattr(fence, "_fenced", lambda *_: None)
    rules = Rules(repeat=True, failing=("activate",))
    scenario = Scenario(name="retried", before=(CREATE, PAUSE), begins=(CONNECT,), rules=rules)
    _broken(
        monkeypatch,
        scenario,
        invariants.i3_rolled_back_attempts_start_nothing,
        Budget(faults=2, switches=1, seconds=60),
    )


def test_i4_destroyed_sandboxes_never_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: a destroyed sandbox's fence covers every generation (§4, §8)."""
    monkeypatch.setattr(fence, "_fenced", lambda *_: None)
    scenario = Scenario(name="killed", before=(CREATE, PAUSE), begins=(CONNECT, KILL), rules=Rules(repeat=True))
    _broken(
        monkeypatch,
        scenario,
        invariants.i4_destroyed_sandboxes_never_come_back,
        Budget(faults=1, switches=2, seconds=60),
    )


def test_i5_teardown_of_rolled_back_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: the rollback receipt excuses the teardown (§7)."""
    monkeypatch.setattr(fence, "_excuses", lambda *_: False)
    rules = Rules(failing=("activate",))
    scenario = Scenario(name="pod deleted", before=(CREATE, PAUSE), begins=(CONNECT, POD_DELETED), rules=rules)
    _broken(monkeypatch, scenario, invariants.i5_teardown_of_rolled_back_saves_nothing, Budget(faults=1, seconds=60))


def _accepts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = transitions.accepted
    monkeypatch.setattr(
        transitions, "accepted", lambda tx, row, saved: {} if row.artifact_id else honest(tx, row, saved)
    )


def test_i6_successors_restore_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: the artifact that an answer reports is accepted before the next generation is minted (§9.0)."""
    _accepts_once(monkeypatch)
    scenario = Scenario(name="again", before=(CREATE, PAUSE), begins=(CONNECT, PAUSE, CONNECT))
    _broken(monkeypatch, scenario, invariants.i6_successors_restore_the_original)


def test_i7_needed_artifacts_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: what is referred to is not collected (§6)."""
    monkeypatch.setattr(artifact_rows, "needed", lambda tx: set[str]())
    scenario = Scenario(name="collected", before=(CREATE, PAUSE), begins=(COLLECT,))
    _broken(monkeypatch, scenario, invariants.i7_needed_artifacts_exist)


def test_i8_durable_before_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: a teardown retires its generation before it answers (§7)."""
    monkeypatch.setattr(fences, "retire", lambda *_: None)
    scenario = Scenario(name="pod deleted", before=(CREATE, PAUSE, CONNECT), begins=(POD_DELETED,))
    _broken(monkeypatch, scenario, invariants.i8_durable_before_the_reply)


def test_i9_unknown_is_neither_success_nor_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: only what a node signed is an answer (§5)."""
    monkeypatch.setattr(answers, "of", _unknown_as(Answer.FAILED))
    scenario = Scenario(name="lost", before=(CREATE, PAUSE), begins=(CONNECT,), rules=Rules(lose=True))
    _broken(monkeypatch, scenario, invariants.i9_unknown_is_neither_success_nor_refusal, Budget(faults=1, seconds=60))


def test_i10_refused_calls_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: checks come before writes (§5.1, §5.2)."""
    honest = activate._pre_check

    def claiming(node: Node, request: Activate) -> fence.Admission:
        with node.writing() as tx:
            fences.claim(tx, request.sandbox_id, request.route, request.digest())
        return honest(node, request)

    scenario = Scenario(name="claimed", before=(), begins=(CREATE,))
    monkeypatch.setattr(activate, "_pre_check", claiming)
    _broken(monkeypatch, scenario, invariants.i10_refused_calls_change_nothing)


def test_i11_both_agree_on_the_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: what a pause saved becomes the current artifact (§6)."""
    _accepts_once(monkeypatch)
    scenario = Scenario(name="paused again", before=(CREATE, PAUSE), begins=(CONNECT, PAUSE))
    _broken(monkeypatch, scenario, invariants.i11_both_agree_on_the_artifact)


def test_i12_acknowledged_writes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: an execution is frozen before it is saved (§6)."""
    monkeypatch.setattr(ModelExecutions, "quiesce", lambda *_: None)
    _broken(monkeypatch, Scenario(name="thawed", begins=(CREATE, PAUSE)), invariants.i12_acknowledged_writes_are_there)


def test_i13_nothing_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard: recovery finds what was in flight (§3)."""
    monkeypatch.setattr(sandboxes, "rows_in_flight", lambda tx: [])
    scenario = Scenario(
        name="half evicted",
        before=(CREATE, PAUSE, UPLOAD, SWEEP),
        begins=(EVICT,),
        rules=Rules(crashes=("a",)),
        uploads=True,
    )
    _broken(monkeypatch, scenario, invariants.i13_nothing_is_left_over, Budget(faults=1, seconds=60))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_scenario_holds_far_longer(scenario: Scenario) -> None:
    single = Exhaustive(scenario.name, scenario.make, Budget(faults=1, seconds=25)).run()
    assert single.found is None, str(single.found)
    double = Exhaustive(scenario.name, scenario.make, Budget(faults=2, switches=1, seconds=15)).run()
    assert double.found is None, str(double.found)
    walks = every_walk(scenario.name, scenario.make, seeds=range(1_000_000), seconds=5, faults=5)
    assert walks.found is None, str(walks.found)
    print(single, double, walks, sep="\n")
