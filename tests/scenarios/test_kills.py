"""The whole daemon dies, as by ``kill -9``, in the middle of a pause or a connect, and is started again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cases.kit import Refused
from tests.scenarios.daemons import Platform, platform, until
from tests.scenarios.inside import groups, mounts, processes

pytestmark = pytest.mark.root

LINES = "/home/user/lines"
#: Somewhat more than a pause or a connect takes, in seconds.
LONGEST = 0.15

POINTS = [
    "suspend.begun",
    "suspend.quiesced",
    "suspend.captured",
    "suspend.named",
    "suspend.ended",
    "suspend.committed",
    "pause.recorded",
    "pause.answered",
    "pause.accepted",
    "activate.claimed",
    "activate.prepare",
    "activate.prepared",
    "activate.started",
    "activate.committed",
    "wake.minted",
    "wake.answered",
    "wake.published",
]
QUICK = ("suspend.named", "activate.started")


class Lived:
    """A sandbox that survives its daemon again and again; it keeps every line that was acknowledged."""

    def __init__(self, flux: Platform) -> None:
        self.flux = flux
        self.id: str = flux.rest.create()["id"]
        self.lines = 0
        self.generation = 1

    def write(self) -> None:
        """Append a line; when this returns it is acknowledged."""
        command = f"echo {self.lines} >>{LINES}; sync {LINES}"
        assert self.flux.rest.run(self.id, command)["exit_code"] == 0
        self.lines += 1

    def move(self) -> Future[Any]:
        """Pause it if it runs, else connect."""
        rest = self.flux.rest
        return self.flux.later(rest.pause if rest.get(self.id)["state"] == "running" else rest.resume, self.id)

    def die(self, call: Future[Any]) -> None:
        """Kill the daemon, whatever the call has come to, and start it again."""
        for daemon in dict.fromkeys([self.flux.control, *self.flux.nodes.values()]):
            daemon.kill()
            daemon.faults.clear()
        with suppress(httpx.HTTPError, Refused):
            call.result(timeout=60)
        self.flux.restart()

    def is_consistent(self) -> None:
        """Assert that it is in exactly one state, on both sides, that nothing is left over, and no line is lost."""
        found = until(self._at_rest, "it is at rest")
        row = self.flux.node_store.row(self.id)
        assert row is not None
        assert row["state"] == {"running": "running", "paused": "suspended"}[found["state"]]
        assert row["artifact_id"] == found["artifact_id"]
        self.has_nothing_left_over(row)
        woken = self.flux.rest.resume(self.id)
        assert woken["generation"] >= self.generation
        self.generation = woken["generation"]
        assert self.flux.rest.read(self.id, LINES).decode().split() == [str(line) for line in range(self.lines)]
        self.write()
        assert len(inits(self.id)) == 1

    def _at_rest(self) -> dict[str, Any] | None:
        found = self.flux.rest.get(self.id)
        return found if found["state"] in ("running", "paused") else None

    def has_nothing_left_over(self, row: dict[str, Any]) -> None:
        """Assert that only the execution that the row speaks of is on the machine."""
        state = self.flux.node.state
        kept = {f"g{row['generation']}"} if row["state"] == "running" else set()
        place = state / "sandboxes" / self.id
        until(lambda: {path.name for path in place.glob("g*")} <= kept, "no other generation's files are there")
        until(lambda: partial(state) == [], "nothing half made is there")
        assert mounts(self.id) == []
        living = str(self.flux.node.process.pid)
        until(lambda: all(f"flux-{living}-" in group for group in groups(self.id)), "no dead daemon's group is there")
        if row["state"] == "suspended":
            assert processes(self.id) == []
        assert len(inits(self.id)) <= 1

    def delete(self) -> None:
        """Delete it; nothing is left."""
        self.flux.rest.delete(self.id)
        until(lambda: groups(self.id) == [] and processes(self.id) == [], "no process is left")
        place = self.flux.node.state / "sandboxes"
        until(lambda: not list(place.glob(f"{self.id}*")), "no file is left")


def inits(sandbox: str) -> list[int]:
    """Return the first processes of a sandbox's executions."""
    return [pid for pid in processes(sandbox) if command_line(pid).startswith(b"flux-init")]


def command_line(pid: int) -> bytes:
    """Return what a process was started as, if it is still there."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def partial(state: Path) -> list[Path]:
    """Return what captures and fetches have left half made."""
    return [path for folder in ("layers", "artifacts") for path in (state / folder).glob(".*.new")]


@pytest.fixture(scope="module", params=["all", pytest.param("split", marks=pytest.mark.slow)])
def lived(request: pytest.FixtureRequest, disk: Path) -> Iterator[Lived]:
    with platform(disk / f"kills-{request.param}", split=request.param == "split") as flux:
        made = Lived(flux)
        yield made
        made.delete()


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in QUICK else pytest.mark.slow) for point in POINTS]
)
def test_killed_at_a_step(lived: Lived, point: str) -> None:
    flux = lived.flux
    if flux.rest.get(lived.id)["state"] == "paused":
        flux.rest.resume(lived.id)
    lived.write()
    if point.startswith(("activate", "wake")):
        flux.rest.pause(lived.id)
    daemon = flux.control if point.startswith(("pause", "wake")) else flux.node
    daemon.faults.arm(f"{point} * 1 kill")
    call = lived.move()
    assert daemon.ended() == -9
    lived.die(call)
    lived.is_consistent()


def _killed_at_random(lived: Lived, seed: int) -> None:
    chance = random.Random(seed)
    if lived.flux.rest.get(lived.id)["state"] == "running":
        lived.write()
    call = lived.move()
    threading.Event().wait(chance.uniform(0, LONGEST))
    lived.die(call)
    lived.is_consistent()
    if chance.random() < 0.5:
        lived.flux.rest.pause(lived.id)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_instant(lived: Lived, seed: int) -> None:
    _killed_at_random(lived, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_killed_at_many_instants(lived: Lived, seed: int) -> None:
    _killed_at_random(lived, seed)
