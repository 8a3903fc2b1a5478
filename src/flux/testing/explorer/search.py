"""Trying the choices: all of them within a budget, or at random; and making a schedule that breaks something short."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from flux.testing.explorer.world import Choice, World

Making: TypeAlias = Callable[[], World]

#: More steps than this are no progress: an operation runs in a circle.
STEPS_MAX = 1500


class Violated(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search goes.

    ``faults``: at most so many in one run. ``switches``: how often a run may leave what would usually come next (a task
    goes on until it waits); ``None``: as often as it likes. ``states`` and ``seconds`` stop the whole search.
    """

    faults: int = 1
    switches: int | None = None
    states: int = 1_000_000
    seconds: float = 3600.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that breaks an invariant: the names of the choices, in order."""

    scenario: str
    invariant: str
    message: str
    schedule: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:3} {name}" for number, name in enumerate(self.schedule, 1))
        return (
            f"{self.invariant} does not hold in the scenario {self.scenario}: {self.message}\n{steps}\n"
            f"replay it with: python -m flux.testing.explorer replay {self.scenario} FILE, with these lines in FILE"
        )


class Report(msgspec.Struct, kw_only=True):
    """What a search came to. ``complete``: nothing within the budget of faults and switches was left out."""

    scenario: str
    states: int = 0
    edges: int = 0
    rests: int = 0
    deepest: int = 0
    seconds: float = 0.0
    complete: bool = True
    found: Found | None = None

    def __str__(self) -> str:
        whole = "all" if self.complete else "stopped"
        return (
            f"{self.scenario}: {self.states} states ({whole}), {self.edges} steps, {self.rests} ends, depth "
            f"{self.deepest}, {self.seconds:.1f} s"
        )


class _Stop(Exception):
    """The budget of the whole search is used up."""


class Exhaustive:
    """Depth first over every choice, each state once: it is left where it was seen with as large a budget."""

    def __init__(self, name: str, make: Making, budget: Budget) -> None:
        self._make = make
        self._budget = budget
        self._seen: dict[bytes, list[tuple[int, int]]] = {}
        self._path: list[str] = []
        self._report = Report(scenario=name)
        self._until = 0.0

    def run(self) -> Report:
        """Search, and return the first violation with a short schedule, if there is one."""
        began = time.monotonic()
        self._until = began + self._budget.seconds
        switches = -1 if self._budget.switches is None else self._budget.switches
        try:
            self._visit(self._make(), self._budget.faults, switches, 0)
        except _Stop:
            self._report.complete = False
        except Violated as violated:
            self._report.found = shortened(self._report.scenario, self._make, self._path, violated)
        self._report.seconds = time.monotonic() - began
        return self._report

    def _visit(self, world: World, faults: int, switches: int, depth: int) -> None:
        choices = world.choices()
        if not self._is_new(world, faults, switches):
            return
        self._counted(depth)
        mark = world.mark(depth)
        if not any(choice.usual for choice in choices):
            self._report.rests += 1
            world.watch.rested(world)
            world.back_to(mark)
        for choice in choices:
            left = _paid(choice, faults, switches)
            if left is None:
                continue
            self._report.edges += 1
            self._path.append(choice.name)
            choice.act()
            self._visit(world, *left, depth + 1)
            self._path.pop()
            world.back_to(mark)
        world.leave(mark)

    def _is_new(self, world: World, faults: int, switches: int) -> bool:
        key = world.fingerprint()
        if switches >= 0:  # what comes next as usual depends on who went last
            key += repr(world.progress.last).encode()
        seen = self._seen.setdefault(key, [])
        if any(before[0] >= faults and before[1] >= switches for before in seen):
            return False
        seen.append((faults, switches))
        return True

    def _counted(self, depth: int) -> None:
        report = self._report
        report.states += 1
        report.deepest = max(report.deepest, depth)
        if depth > STEPS_MAX:
            raise Violated("progress", f"{depth} steps and no end")
        if report.states >= self._budget.states or time.monotonic() > self._until:
            raise _Stop


def _paid(choice: Choice, faults: int, switches: int) -> tuple[int, int] | None:
    if choice.fault:
        return (faults - 1, switches) if faults else None
    if choice.usual or switches < 0:
        return faults, switches
    return (faults, switches - 1) if switches else None


def walk(
    name: str, make: Making, *, seed: int, faults: int = 3, steps_max: int = STEPS_MAX, turns: float = 0.3
) -> Report:
    """Run once, at random: ``turns`` is how often something else happens than what usually would."""
    chance = random.Random(seed)
    world = make()
    report = Report(scenario=name)
    path: list[str] = []
    began = time.monotonic()
    try:
        while (choice := _drawn(world, chance, faults, turns)) is not None:
            path.append(choice.name)
            faults -= choice.fault
            choice.act()
            if len(path) > steps_max:
                raise Violated("progress", f"{len(path)} steps and no end")
        report.rests = 1
        world.watch.rested(world)
    except Violated as violated:
        report.found = shortened(name, make, path, violated)
    report.states = report.edges = report.deepest = len(path)
    report.seconds = time.monotonic() - began
    return report


def _drawn(world: World, chance: random.Random, faults: int, turns: float) -> Choice | None:
    choices = world.choices()
    usual = next((choice for choice in choices if choice.usual), None)
    others = [choice for choice in choices if not choice.usual and (faults > 0 or not choice.fault)]
    plain = [choice for choice in others if not choice.fault]
    if usual is None:
        # what is late may still arrive, or never
        return chance.choice(plain) if plain and chance.random() < 0.8 else None
    draw = chance.random()
    if others and draw < turns / 4:
        return chance.choice(others)
    if plain and draw < turns:
        return chance.choice(plain)
    return usual


def replay(make: Making, schedule: Sequence[str], *, go_on: bool = True) -> tuple[list[str], Violated | None]:
    """Make the named choices, leaving out what is not possible, and then the usual ones to the end.

    Returns:
        What was really done, and what was violated.
    """
    world = make()
    done: list[str] = []
    try:
        for name in schedule:
            if _perform(world, name, done):
                continue
        while go_on and len(done) < STEPS_MAX:
            usual = next((choice for choice in world.choices() if choice.usual), None)
            if usual is None:
                world.watch.rested(world)
                break
            done.append(usual.name)
            usual.act()
    except Violated as violated:
        return done, violated
    return done, None


def _perform(world: World, name: str, done: list[str]) -> bool:
    choice = next((choice for choice in world.choices() if choice.name == name), None)
    if choice is None:
        return False
    done.append(name)
    choice.act()
    return True


def shortened(name: str, make: Making, schedule: Sequence[str], violated: Violated) -> Found:
    """Return the shortest schedule found from this one that breaks the same invariant: parts are left out."""
    best, last = list(schedule), violated
    size = max(1, len(best) // 2)
    while size:
        start = 0
        while start < len(best):
            tried = [*best[:start], *best[start + size :]]
            done, broken = replay(make, tried)
            if broken is not None and broken.invariant == violated.invariant and len(done) < len(best):
                best, last = done, broken
            else:
                start += size
        size //= 2
    return Found(scenario=name, invariant=last.invariant, message=str(last), schedule=tuple(best))


def every_walk(name: str, make: Making, *, seeds: Sequence[int], seconds: float, **named: Any) -> Report:
    """Run with one seed after the other until something is violated or time is up; the report adds up."""
    total = Report(scenario=name)
    until = time.monotonic() + seconds
    for seed in seeds:
        report = walk(name, make, seed=seed, **named)
        total.states += report.states
        total.edges += report.edges
        total.rests += report.rests
        total.deepest = max(total.deepest, report.deepest)
        total.seconds += report.seconds
        total.found = report.found
        if total.found is not None or time.monotonic() > until:
            break
    return total
