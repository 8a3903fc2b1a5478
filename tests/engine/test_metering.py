"""What running sandboxes used: rounds of samples, kept in a bounded ring, gone with the sandbox (spec: e2b, E9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flux.core.access import Actor, Role
from flux.core.errors import Code
from flux.engine.lifecycle.meter import KEPT, Meter, Sample
from flux.engine.lifecycle.metering import Sampler, sample_of
from flux.engine.lifecycle.usage import Measured
from tests.engine.kit import ADMIN, Kit, refused

USER = Actor(name="eve", role=Role.USER, key_id="ky3")

FIRST = Measured(
    sandbox_id="sb1",
    generation=2,
    at=1000.0,
    age_seconds=10.0,
    cpus=2.0,
    cpu_seconds=4.0,
    processes=3,
    memory_used=700,
    memory_total=4096,
    memory_cache=300,
    disk_used=50,
    disk_total=100,
)


def later(**fields: object) -> Measured:
    return msgspec.structs.replace(FIRST, **fields)


@pytest.mark.parametrize(
    ("now", "before", "percent"),
    [
        (FIRST, None, 20.0),
        (later(age_seconds=15.0, cpu_seconds=9.0), FIRST, 50.0),
        (later(age_seconds=15.0, cpu_seconds=4.0), FIRST, 0.0),
        (later(age_seconds=15.0, cpu_seconds=3.0), FIRST, 0.0),
        (later(age_seconds=15.0, cpu_seconds=99.0), FIRST, 100.0),
        (later(generation=3, age_seconds=1.0, cpu_seconds=0.5), FIRST, 25.0),
    ],
)
def test_the_load_is_that_of_all_its_processors_since_the_sample_before(
    now: Measured, before: Measured | None, percent: float
) -> None:
    assert sample_of(now, before).cpu_used_pct == percent


def test_a_sample_tells_memory_without_what_can_be_given_back() -> None:
    assert sample_of(FIRST, None) == Sample(
        at=1000.0,
        generation=2,
        cpu_count=2.0,
        cpu_used_pct=20.0,
        memory_used=400,
        memory_total=4096,
        memory_cache=300,
        disk_used=50,
        disk_total=100,
    )


def test_the_ring_is_bounded_and_cut_by_time() -> None:
    meter, one = Meter(), sample_of(FIRST, None)
    for number in range(KEPT + 5):
        meter.add("sb1", msgspec.structs.replace(one, at=float(number)))
    times = [sample.at for sample in meter.between("sb1", None, None)]
    assert times == [float(number) for number in range(5, KEPT + 5)]
    assert [sample.at for sample in meter.between("sb1", 7.0, 9.0)] == [7.0, 8.0, 9.0]
    meter.forget(["sb1"])
    assert meter.between("sb1", None, None) == []


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Kit]:
    """An engine as a daemon has it: executions outlast the calls that use them."""
    made = Kit(tmp_path, persistent=True)
    yield made
    made.engine.close()


def test_rounds_sample_what_runs_for_whoever_sees_it(lasting: Kit) -> None:
    kit, sandbox = lasting, lasting.sandbox()
    sampler = Sampler(kit.engine.context)
    sampler.sample()
    kit.clock.advance(5)
    sampler.sample()
    found = kit.engine.metrics(ADMIN, sandbox.id, None, None)
    assert [round(sample.at - kit.clock.wall()) for sample in found] == [-5, 0]
    assert {sample.generation for sample in found} == {sandbox.generation}
    assert all(sample.disk_total >= sample.disk_used > 0 and sample.memory_total > 0 for sample in found)
    assert kit.engine.metrics(ADMIN, sandbox.id, kit.clock.wall(), None) == found[1:]
    with refused(Code.NOT_FOUND):
        kit.engine.metrics(USER, sandbox.id, None, None)

    kit.delete(sandbox)
    sampler.sample()
    assert kit.engine.context.meter.sandboxes() == []
    with refused(Code.NOT_FOUND):
        kit.engine.metrics(ADMIN, sandbox.id, None, None)
