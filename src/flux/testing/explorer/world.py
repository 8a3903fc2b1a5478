"""The world: parties, the operations under way, the network, time. It offers the choices of a state and makes one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from flux.control.calls import Nap, Send
from flux.core.errors import FluxError
from flux.failpoints import Point
from flux.testing.clock import FakeClock
from flux.testing.explorer.network import Call, Stage, key_of, lost
from flux.testing.explorer.party import Party
from flux.testing.explorer.tape import Entry, Fault, Tape
from flux.testing.explorer.task import Operation, Task

#: At these points an operation waits for another one of its party.
WAITING = frozenset({Point.ACTIVATE_JOINED, Point.TEARDOWN_WAITED})
_NOTHING = Entry()


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a scenario.

    ``settled``: it begins only once all earlier ones are over. ``make`` is given the world.
    """

    name: str
    party: str
    make: Callable[[Any], Operation]
    settled: bool = False


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which faults a scenario admits. ``failing``: the names of the operations of which steps may fail."""

    crashes: tuple[str, ...] = ()
    reboots: tuple[str, ...] = ()
    lose: bool = False
    repeat: bool = False
    failing: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True):
    """One thing that may happen next. ``name`` is how a schedule writes it; ``act`` makes it happen."""

    name: str
    act: Callable[[], None]
    fault: bool = False
    usual: bool = False


class Watch(Protocol):
    """What looks on: records what must be remembered, and raises where an invariant is broken."""

    def started(self, call: Call, task: Task) -> None:
        """A node begins to serve a call."""
        ...

    def stepped(self, world: Any, task: Task | None, *, wrote: bool) -> None:
        """Something has happened; ``wrote``: what outlives the task's party is another now."""
        ...

    def rested(self, world: Any) -> None:
        """Nothing is under way any more."""
        ...

    def mark(self) -> Any:
        """Return what ``back_to`` needs."""
        ...

    def back_to(self, mark: Any) -> None:
        """Forget everything since ``mark``."""
        ...

    def state(self) -> str:
        """Return what must be told apart between states of the world."""
        ...


class Progress(msgspec.Struct, frozen=True):
    """The part of the world's state that is replaced, never changed: going back is putting the old one back."""

    calls: tuple[Call, ...] = ()
    begun: int = 0
    last: int | None = None
    steps: tuple[tuple[str, int], ...] = ()
    down: frozenset[str] = frozenset()

    def call(self, number: int) -> Call:
        """Return a call."""
        return self.calls[number]

    def with_call(self, call: Call) -> Progress:
        """Replace a call, or add the next one."""
        calls = (*self.calls[: call.number], call, *self.calls[call.number + 1 :])
        return msgspec.structs.replace(self, calls=calls)


class World:
    """Everything at once. ``choices`` is what may happen next; the first one that is ``usual`` is what would.

    Args:
        parties: nodes and the control plane, by name.
        clock: everybody's.
        tape: what the parties' databases and machines are used through.
        begins: the scenario's operations, in order.
        rules: the faults that are admitted.
        watch: looks on.
    """

    def __init__(
        self,
        parties: Sequence[Party],
        clock: FakeClock,
        tape: Tape,
        begins: Sequence[Begin],
        rules: Rules,
        watch: Watch,
    ) -> None:
        self.parties = {party.name: party for party in parties}
        self.clock = clock
        self.begins = begins
        self.rules = rules
        self.watch = watch
        self.tasks: list[Task] = []
        self.progress = Progress(steps=tuple((party.name, 0) for party in parties))
        self._tape = tape
        self._began = clock.wall()
        self._contents: dict[str, str] = {}

    # What may happen

    def choices(self) -> list[Choice]:
        """Return everything that may happen next; faults among it."""
        ordinary = list(self._ordinary())
        waits = not ordinary
        if waits:
            ordinary = list(self._awakening())
        begin = self._begin()
        if begin is not None and (waits or not self.begins[self.progress.begun].settled):
            # what the scenario does next comes before time passes
            ordinary = [begin, *ordinary] if waits else [*ordinary, begin]
        found = [*self._usual_first(ordinary), *self._strays()]
        return [*found, *self._faults()]

    def _usual_first(self, ordinary: list[Choice]) -> list[Choice]:
        if not ordinary:
            return []
        last = self.progress.last
        first = next((each for each in ordinary if last is not None and each.name.endswith(f"#{last}")), ordinary[0])
        return [msgspec.structs.replace(first, usual=True), *(each for each in ordinary if each is not first)]

    def _ordinary(self) -> Iterator[Choice]:
        for call in self.progress.calls:
            if call.stage is Stage.SENT and call.awaited and not self._is_down(call.node):
                yield Choice(f"deliver {call}", partial(self._deliver, call))
        for task in self.tasks:
            if self._can_step(task):
                yield Choice(f"step {task}", partial(self._step, task))

    def _can_step(self, task: Task) -> bool:
        place = task.place
        if place.is_over:
            return False
        if place.waits is not None:
            return self.progress.call(place.waits).stage is Stage.ANSWERED
        if place.polled is not None:
            return self._steps_of(task.party) > place.polled
        return True

    def _awakening(self) -> Iterator[Choice]:
        due = [task for task in self.tasks if not task.place.is_over and task.place.due is not None]
        if due:
            first = min(due, key=lambda task: task.place.due or 0.0)
            yield Choice(f"wait for {first}", lambda: self._wait_for(first))

    def _begin(self) -> Choice | None:
        if self.progress.begun >= len(self.begins):
            return None
        begin = self.begins[self.progress.begun]
        if self._is_down(begin.party) or (begin.settled and not self._is_settled()):
            return None
        return Choice(f"begin {begin.name}", lambda: self._begun(begin))

    def _strays(self) -> Iterator[Choice]:
        seen: set[str] = set()
        for call in self.progress.calls:
            if call.is_stray and not self._is_down(call.node) and call.state() not in seen:
                seen.add(call.state())  # two equal messages are as good as one
                yield Choice(f"deliver {call}", partial(self._deliver, call))

    def _faults(self) -> Iterator[Choice]:
        rules = self.rules
        for call in self.progress.calls:
            if rules.lose and call.awaited:
                yield Choice(f"give up {call}", partial(self._give_up, call), fault=True)
            if rules.repeat and call.awaited and call.stage is not Stage.SENT:
                yield Choice(f"repeat {call}", partial(self._repeat, call), fault=True)
        for task in self.tasks:
            if task.name in rules.failing and self._can_step(task) and task.place.at not in WAITING:
                yield from self._failures(task)
        for name in rules.crashes:
            if self._is_busy(name):
                yield Choice(f"crash {name}", partial(self.crash, name), fault=True)
        for name in rules.reboots:
            yield Choice(f"reboot {name}", partial(self.crash, name, host=True), fault=True)

    def _failures(self, task: Task) -> Iterator[Choice]:
        for fault in Fault:
            yield Choice(f"fail {fault.value} of {task}", partial(self._step, task, fault), fault=True)

    # What happens

    def perform(self, name: str) -> bool:
        """Make the choice of that name; ``False`` if there is none."""
        for choice in self.choices():
            if choice.name == name:
                choice.act()
                return True
        return False

    def _deliver(self, call: Call) -> None:
        party = self.parties[call.node]
        name, make = party.serve(call.request)
        self._set(call, stage=Stage.SERVED)
        task = self._new(call.node, name, make, call.number)
        self.watch.started(call, task)
        self._step(task)

    def _step(self, task: Task, fault: Fault | None = None) -> None:
        given = _NOTHING
        if task.place.waits is not None:
            call = self.progress.call(task.place.waits)
            given = call.answer or _NOTHING
            self._set(call, awaited=False)
        self._resume(task, given, fault)

    def _resume(self, task: Task, given: Entry, fault: Fault | None = None) -> None:
        party = self.parties[task.party]
        before, contents = party.changes(), self.contents_of(task.party)
        self._tape.fault = fault
        task.resume(given)
        changed = party.changes() != before
        if changed:
            del self._contents[task.party]
        self._count(task, changed=changed)
        self._arranged(task)
        self.watch.stepped(self, task, wrote=changed and self.contents_of(task.party) != contents)

    def _arranged(self, task: Task) -> None:
        """Note what a task waits for, and hand on what it came to."""
        place = task.place
        if place.outcome is not None:
            if task.call is not None:
                self._set(self.progress.call(task.call), stage=Stage.ANSWERED, answer=place.outcome)
        elif isinstance(place.at, Send):
            task.place = msgspec.structs.replace(place, waits=self._send(place.at.node, place.at.request))
        elif isinstance(place.at, Nap):
            due = self.clock.wall() + place.at.seconds
            task.place = msgspec.structs.replace(place, due=due, polled=self._steps_of(task.party))
        elif place.at in WAITING:
            task.place = msgspec.structs.replace(place, polled=self._steps_of(task.party))

    def _send(self, node: str, request: Any) -> int:
        number = len(self.progress.calls)
        self.progress = self.progress.with_call(Call(number=number, node=node, request=request, key=key_of(request)))
        return number

    def _wait_for(self, task: Task) -> None:
        missing = (task.place.due or 0.0) - self.clock.wall()
        if missing > 0:
            self.clock.advance(missing)
        self._step(task)

    def _begun(self, begin: Begin) -> None:
        self.progress = msgspec.structs.replace(self.progress, begun=self.progress.begun + 1)
        self._step(self._new(begin.party, begin.name, lambda: begin.make(self), None))

    def run_now(self, party: str, name: str, make: Callable[[], Operation]) -> Task:
        """Begin an operation that is not in the scenario."""
        task = self._new(party, name, make, None)
        self._step(task)
        return task

    def next_calm(self) -> Choice | None:
        """Return what would usually come next of what is under way; ``None`` when nothing is."""
        ordinary = list(self._ordinary()) or list(self._awakening())
        found = self._usual_first(ordinary)
        return found[0] if found else None

    def _give_up(self, call: Call) -> None:
        task = next(task for task in self.tasks if task.place.waits == call.number and not task.place.is_over)
        self._set(call, awaited=False)
        self._resume(task, lost(call.node))

    def _repeat(self, call: Call) -> None:
        number = len(self.progress.calls)
        self.progress = self.progress.with_call(
            Call(number=number, node=call.node, request=call.request, key=call.key, awaited=False)
        )

    def crash(self, name: str, *, host: bool = False) -> None:
        """End a party's process; a new one recovers. With ``host``, its whole machine starts anew."""
        party = self.parties[name]
        for task in self.tasks:
            if task.party == name and not task.place.is_over:
                self._abandon(task)
        party.crash(host=host)
        self._contents.pop(name, None)
        recovery = party.recover()
        if recovery:
            self.progress = msgspec.structs.replace(self.progress, down=self.progress.down | {name}, last=None)
            self._new(name, "recover", lambda: self._recovery(name, recovery), None)
        self.watch.stepped(self, None, wrote=True)

    def _recovery(self, name: str, recovery: list[tuple[str, Callable[[], Operation]]]) -> Operation:
        for _, make in recovery:
            yield from make()
        return None

    def _abandon(self, task: Task) -> None:
        if task.place.waits is not None:
            self._set(self.progress.call(task.place.waits), awaited=False)
        if task.call is not None:
            self._set(self.progress.call(task.call), stage=Stage.ANSWERED, answer=lost(task.party))
        task.place = msgspec.structs.replace(task.place, dead=True, shape="dead")

    # Bookkeeping

    def _new(self, party: str, name: str, make: Callable[[], Operation], call: int | None) -> Task:
        task = Task(len(self.tasks), party, name, make, self._tape, call)
        self.tasks.append(task)
        return task

    def _count(self, task: Task, *, changed: bool) -> None:
        """Count the steps that those who wait may have waited for."""
        counts = changed or task.place.is_over
        steps = tuple((name, count + (counts and name == task.party)) for name, count in self.progress.steps)
        down = self.progress.down
        if task.name == "recover" and task.place.is_over:
            down = down - {task.party}
        self.progress = msgspec.structs.replace(self.progress, steps=steps, down=down, last=task.number)

    def _steps_of(self, party: str) -> int:
        return next(count for name, count in self.progress.steps if name == party)

    def _is_down(self, party: str) -> bool:
        return party in self.progress.down

    def _is_busy(self, party: str) -> bool:
        return not self._is_down(party) and any(
            task.party == party and not task.place.is_over and task.place.at is not None for task in self.tasks
        )

    def _is_settled(self) -> bool:
        return all(task.place.is_over for task in self.tasks)

    def is_at_rest(self) -> bool:
        """Tell whether nothing is under way. Messages for which nobody waits may still arrive."""
        return self._is_settled()

    def stuck(self) -> list[Task]:
        """Return the operations that are under way though nothing more will happen."""
        return [task for task in self.tasks if not task.place.is_over]

    def _set(self, call: Call, **changes: Any) -> None:
        held = self.progress.call(call.number)
        self.progress = self.progress.with_call(msgspec.structs.replace(held, **changes))

    # Going back, and telling states apart

    def mark(self, depth: int) -> Any:
        """Return what ``back_to`` needs to bring this state back. ``depth`` counts marks that are not left yet."""
        for party in self.parties.values():
            party.connection.execute(f"SAVEPOINT mark{depth}")
        clock = dict(vars(self.clock))
        parties = {name: party.mark() for name, party in self.parties.items()}
        places = [task.place for task in self.tasks]
        return depth, self.progress, places, parties, clock, self.watch.mark(), dict(self._contents)

    def back_to(self, mark: Any) -> None:
        """Bring back the state in which ``mark`` was made; the mark can be used again."""
        depth, self.progress, places, parties, clock, watch, contents = mark
        for party in self.parties.values():
            party.connection.execute(f"ROLLBACK TO mark{depth}")
        for task in self.tasks[len(places) :]:
            task.forget()
        del self.tasks[len(places) :]
        for task, place in zip(self.tasks, places, strict=True):
            task.place = place
        for name, party in self.parties.items():
            party.back_to(parties[name])
        vars(self.clock).update(clock)
        self.watch.back_to(watch)
        self._contents = dict(contents)

    def leave(self, mark: Any) -> None:
        """Give up a mark, after going back to it."""
        for party in self.parties.values():
            party.connection.execute(f"RELEASE mark{mark[0]}")

    def fingerprint(self) -> bytes:
        """Return a digest that is equal where everything that can make a difference later is equal."""
        parts = [f"{self.progress.begun};{sorted(self.progress.down)};{self.clock.wall() - self._began:.3f}"]
        for name, party in self.parties.items():
            parts += [self.contents_of(name), party.memory()]
        parts.extend(sorted(self._task_state(task) for task in self.tasks if not task.place.is_over))
        parts.extend(sorted({call.state() for call in self.progress.calls if call.is_stray}))
        parts.append(self.watch.state())
        return hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def contents_of(self, name: str) -> str:
        """Return everything of a party that outlives its process."""
        if name not in self._contents:
            self._contents[name] = self.parties[name].contents()
        return self._contents[name]

    def _task_state(self, task: Task) -> str:
        place = task.place
        waits = "" if place.waits is None else self.progress.call(place.waits).state()
        blocked = place.polled is not None and self._steps_of(task.party) <= place.polled
        serves = "" if task.call is None else self.progress.call(task.call).state()
        return f"{task.party}.{task.name}:{place.shape}:{waits}:{serves}:{blocked}"

    def result_of(self, name: str) -> Entry | None:
        """Return what the first operation of that name came to, if it is over."""
        return next((task.place.outcome for task in self.tasks if task.name == name), None)


def unexpected(task: Task) -> Exception | None:
    """Return the error with which an operation ended that no operation may end with."""
    outcome = task.place.outcome
    if outcome is None or outcome.error is None or isinstance(outcome.error, FluxError):
        return None
    return outcome.error
