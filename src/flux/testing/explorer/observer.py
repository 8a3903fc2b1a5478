"""Looks on: keeps the facts up to date, and asks the invariants after each step and at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from flux.core.node import Destroyed
from flux.testing.explorer import invariants
from flux.testing.explorer.control import ControlParty
from flux.testing.explorer.facts import Facts, moved, node_view, registry_view
from flux.testing.explorer.invariants import Invariant, Moment
from flux.testing.explorer.machine import Machine
from flux.testing.explorer.network import Call
from flux.testing.explorer.node import NodeParty
from flux.testing.explorer.search import Violated
from flux.testing.explorer.tape import Entry
from flux.testing.explorer.task import Task, describe
from flux.testing.explorer.world import World, unexpected

#: How many steps everything takes at most to come to rest once nothing goes wrong any more.
CALM_STEPS_MAX = 3000


class Observer:
    """Implements ``world.Watch``.

    Args:
        asked: the invariants that count.
        checks: is counted up for each time that an invariant was asked.
        wakes: whether a sandbox must be able to wake when all is at rest.
    """

    def __init__(
        self, asked: Sequence[Invariant] = invariants.ALL, checks: Counter[str] | None = None, *, wakes: bool = True
    ) -> None:
        self.facts = Facts()
        self.checks: Counter[str] = Counter() if checks is None else checks
        self._steps = [each for each in invariants.EVERY_STEP if each in asked]
        self._rest = [each for each in invariants.AT_REST if each in asked]
        self._wakes = wakes

    def started(self, call: Call, task: Task) -> None:
        pass

    def stepped(self, world: World, task: Task | None, *, wrote: bool) -> None:
        before = self.facts
        names = list(world.parties) if task is None else [task.party]
        events = [event for name in names for event in self._events(world, name)]
        for name in names:
            self._looked(world, name)
        for event in events:
            self.facts = self.facts.with_event(event)
        if task is not None and wrote:
            self._replace(writers=self.facts.writers | {task.number})
            if moved(before.node(task.party), self.facts.node(task.party)):
                self._replace(admitted=self.facts.admitted | {task.number})
        call = None if task is None or task.call is None else world.progress.call(task.call)
        answer = None if task is None else task.place.outcome
        if task is not None and call is not None and answer is not None:
            self._answered(task, call, answer)
        moment = Moment(
            before=before,
            after=self.facts,
            machines=_machines(world),
            party=None if task is None else task.party,
            events=events,
            request=None if call is None else call.request,
            answer=answer,
            task=None if task is None else task.number,
        )
        self._ask(self._steps, moment)
        self._unexpected(task)

    def _events(self, world: World, name: str) -> list[Any]:
        party = world.parties[name]
        if not isinstance(party, NodeParty):
            return []
        events, party.machine.events = party.machine.events, []
        return events

    def _looked(self, world: World, name: str) -> None:
        party = world.parties[name]
        if isinstance(party, NodeParty):
            self.facts = self.facts.with_node(name, node_view(party.connection), party.machine.state.saved)
        elif isinstance(party, ControlParty):
            self.facts = self.facts.with_registry(registry_view(party.connection))

    def _answered(self, task: Task, call: Call, answer: Entry) -> None:
        if isinstance(answer.value, Destroyed):
            self._replace(destroyed=self.facts.destroyed | {(task.party, call.request.sandbox_id)})
        route = getattr(call.request, "route", None)
        ended = invariants.class_of(answer)
        # of one that ran and is over, the answer that it runs may still be on its way
        if route is None or (task.party, call.request.sandbox_id, route.generation) in self.facts.committed:
            return
        if ended is not None:
            self._replace(classes={**self.facts.classes, (task.party, route.attempt_id): ended})

    def _replace(self, **changes: Any) -> None:
        self.facts = msgspec.structs.replace(self.facts, **changes)

    def _ask(self, asked: Sequence[Invariant], moment: Moment) -> None:
        for invariant in asked:
            self.checks[invariant.__name__] += 1
            wrong = invariant(moment)
            if wrong is not None:
                raise Violated(invariant.__name__, wrong)

    def _unexpected(self, task: Task | None) -> None:
        error = None if task is None else unexpected(task)
        if error is not None:
            raise Violated("errors_are_typed", f"{task} ended with {type(error).__name__}: {error}") from error

    def rested(self, world: World) -> None:
        """Restart every process, let all that was begun be finished, look at what is left; wake what can be woken."""
        for name in world.parties:
            world.crash(name)
        calm(world)
        control = world.parties["control"]
        assert isinstance(control, ControlParty)
        world.run_now("control", "sweep", control.sweep)
        calm(world)
        self._at_rest(world)
        if not self._wakes:
            return
        for known in registry_view(control.connection).values():
            if known.state in ("running", "paused"):
                _woken(world, control, known.sandbox_id)

    def _at_rest(self, world: World) -> None:
        self._ask(self._rest, Moment(before=self.facts, after=self.facts, machines=_machines(world)))

    def mark(self) -> Any:
        return self.facts

    def back_to(self, mark: Any) -> None:
        self.facts = mark

    def state(self) -> str:
        return self.facts.state()


def _machines(world: World) -> dict[str, Machine]:
    return {name: party.machine for name, party in world.parties.items() if isinstance(party, NodeParty)}


def calm(world: World) -> None:
    """Let everything that is under way come to its end, in the usual order, without another fault."""
    for _ in range(CALM_STEPS_MAX):
        choice = world.next_calm()
        if choice is None:
            break
        choice.act()
    else:
        raise Violated("progress", f"{CALM_STEPS_MAX} steps and no end")
    if world.stuck():
        raise Violated("progress", f"nothing goes on, and these are not done: {', '.join(map(str, world.stuck()))}")


def _woken(world: World, control: ControlParty, sandbox_id: str) -> None:
    task = world.run_now("control", "wake at last", lambda: control.connect(sandbox_id))
    calm(world)
    outcome = task.place.outcome
    if outcome is None or outcome.error is not None:
        raise Violated("progress", f"{sandbox_id} cannot be woken: {'' if outcome is None else describe(outcome)}")
