"""The explorer itself, on operations of a few lines: it finds what is wrong, and only that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from typing import Any

import pytest

from flux.control.calls import Nap, Send
from flux.core.errors import Code, FluxError
from flux.failpoints import Point
from flux.testing.clock import FakeClock
from flux.testing.explorer.party import dump
from flux.testing.explorer.search import Budget, Exhaustive, Violated, every_walk, replay
from flux.testing.explorer.tape import ModelDatabase, Tape
from flux.testing.explorer.world import Begin, Rules, World


class Counter:
    """A party with one number. ``lines`` is what its disk holds."""

    def __init__(self, name: str, clock: FakeClock, tape: Tape, *, guarded: bool) -> None:
        self.name = name
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("CREATE TABLE counter (id TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT")
        self.connection.execute("INSERT INTO counter VALUES ('n', 0)")
        self.connection.execute("SAVEPOINT world")
        self.database = ModelDatabase(self.connection, clock, tape)
        self.guarded = guarded
        self.recovered = 0

    def add(self) -> Generator[Point, None, int]:
        while True:
            with self.database.reading() as tx:
                (value,) = tx.one("SELECT value FROM counter") or (0,)
            yield Point.ACTIVATE_CHECKED
            with self.database.transaction() as tx:
                guard = "AND value = ?2" if self.guarded else "AND ?2 = ?2"
                done = tx.execute(f"UPDATE counter SET value = ?1 WHERE id = 'n' {guard}", (value + 1, value))
            yield Point.ACTIVATE_CLAIMED
            if done:
                return value + 1

    def serve(self, request: Any) -> tuple[str, Callable[[], Any]]:
        return "add", self.add

    def recover(self) -> list[tuple[str, Callable[[], Any]]]:
        return []

    def crash(self, *, host: bool) -> None:
        self.recovered += 1

    def changes(self) -> int:
        return self.connection.total_changes

    def contents(self) -> str:
        return dump(self.connection)

    def memory(self) -> str:
        return ""

    def mark(self) -> Any:
        return self.recovered

    def back_to(self, mark: Any) -> None:
        self.recovered = mark

    @property
    def value(self) -> int:
        (value,) = self.connection.execute("SELECT value FROM counter").fetchone()
        return int(value)


class Sum:
    """Looks on: at the end the counter is what was added to it."""

    def __init__(self, expected: int | None = None, most: int | None = None) -> None:
        self.expected = expected
        self.most = most
        self.rests: set[int] = set()

    def started(self, call: Any, task: Any) -> None:
        pass

    def stepped(self, world: World, task: Any, *, wrote: bool) -> None:
        if self.most is not None and world.parties["node"].value > self.most:  # type: ignore[attr-defined]
            raise Violated("most", f"more than {self.most}")

    def rested(self, world: World) -> None:
        value = world.parties["node"].value  # type: ignore[attr-defined]
        self.rests.add(value)
        if self.expected is not None and value != self.expected:
            raise Violated("sum", f"{value} is not {self.expected}")

    def mark(self) -> Any:
        return None

    def back_to(self, mark: Any) -> None:
        pass

    def state(self) -> str:
        return ""


def sending(world: World) -> Generator[Any, Any, int | None]:
    for _ in range(2):
        try:
            return int((yield Send("node", "add")))
        except FluxError as error:
            assert error.code is Code.UNKNOWN_OUTCOME
            yield Nap(1.0)
    return None


def two_tasks(*, guarded: bool, watch: Sum) -> Callable[[], World]:
    def make() -> World:
        clock, tape = FakeClock(), Tape()
        node = Counter("node", clock, tape, guarded=guarded)
        begins = [Begin(name=name, party="node", make=lambda world: node.add()) for name in ("one", "two")]
        return World([node], clock, tape, begins, Rules(), watch)

    return make


def one_message(rules: Rules, watch: Sum) -> Callable[[], World]:
    def make() -> World:
        clock, tape = FakeClock(), Tape()
        node = Counter("node", clock, tape, guarded=True)
        control = Counter("control", clock, tape, guarded=True)
        return World([node, control], clock, tape, [Begin(name="send", party="control", make=sending)], rules, watch)

    return make


def test_a_lost_update_is_found_and_told_in_few_steps() -> None:
    make = two_tasks(guarded=False, watch=Sum(2))
    report = Exhaustive("two", make, Budget()).run()
    assert report.found is not None
    assert report.found.invariant == "sum"
    assert len(report.found.schedule) == 6
    done, broken = replay(make, report.found.schedule)
    assert (tuple(done), broken is not None) == (report.found.schedule, True)


def test_with_its_guard_every_order_holds_and_each_is_tried() -> None:
    watch = Sum(2)
    report = Exhaustive("two", two_tasks(guarded=True, watch=watch), Budget()).run()
    assert (report.found, report.complete, watch.rests) == (None, True, {2})
    assert report.states > 12


def test_no_switch_means_one_after_the_other() -> None:
    assert Exhaustive("two", two_tasks(guarded=False, watch=Sum(2)), Budget(switches=0)).run().found is None
    assert Exhaustive("two", two_tasks(guarded=False, watch=Sum(2)), Budget(switches=1)).run().found is not None


@pytest.mark.parametrize(
    ("rules", "faults", "ends"),
    [
        (Rules(), 1, {1}),
        (Rules(lose=True), 1, {1, 2}),  # lost; or late or only its answer lost, and the message was sent again
        (Rules(lose=True), 2, {0, 1, 2}),
        (Rules(repeat=True), 1, {1, 2}),
        (Rules(crashes=("node",)), 1, {1, 2}),
        (Rules(crashes=("control",)), 1, {0, 1}),  # who sent it is dead, and nobody sends it again
    ],
)
def test_messages_are_lost_late_and_repeated(rules: Rules, faults: int, ends: set[int]) -> None:
    watch = Sum()
    report = Exhaustive("message", one_message(rules, watch), Budget(faults=faults)).run()
    assert (report.found, report.complete, watch.rests) == (None, True, ends)


def test_a_crash_forgets_and_nothing_acts_after_it() -> None:
    acted: list[str] = []

    def make() -> World:
        clock, tape = FakeClock(), Tape()
        node = Counter("node", clock, tape, guarded=True)

        def stubborn(world: World) -> Generator[Point, None, None]:
            try:
                yield Point.ACTIVATE_CLAIMED
                yield Point.ACTIVATE_PREPARED
            finally:
                with node.database.transaction() as tx:
                    tx.execute("UPDATE counter SET value = value + 7")
                acted.append("after it was forgotten")

        begins = [Begin(name="stubborn", party="node", make=stubborn)]
        return World([node], clock, tape, begins, Rules(crashes=("node",)), watch)

    watch = Sum()
    Exhaustive("crash", make, Budget()).run()
    assert watch.rests == {0, 7}
    assert len(acted) == 1


def test_random_walks_find_it_too_and_the_same_seed_walks_the_same_way() -> None:
    make = two_tasks(guarded=False, watch=Sum(2))
    first = every_walk("two", make, seeds=range(100), seconds=10)
    again = every_walk("two", make, seeds=range(100), seconds=10)
    assert first.found is not None and again.found is not None
    assert (first.found.schedule, first.states) == (again.found.schedule, again.states)


def test_an_operation_that_is_not_deterministic_is_refused() -> None:
    calls: list[int] = []

    def make() -> World:
        clock, tape = FakeClock(), Tape()
        node = Counter("node", clock, tape, guarded=True)

        def fickle(world: World) -> Generator[Point, None, None]:
            calls.append(1)
            for _ in range(len(calls)):
                with node.database.reading() as tx:
                    tx.one("SELECT value FROM counter")
            yield Point.ACTIVATE_CHECKED
            yield Point.ACTIVATE_CLAIMED

        begins = [
            Begin(name="fickle", party="node", make=fickle),
            Begin(name="add", party="node", make=lambda _: node.add()),
        ]
        return World([node], clock, tape, begins, Rules(), Sum())

    with pytest.raises(AssertionError, match="not deterministic"):
        Exhaustive("fickle", make, Budget()).run()
