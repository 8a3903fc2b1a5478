"""Collection of the object store: what is needed stays, whatever is interleaved with it (I7, lifecycle case 10)."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from flux.control.collect import collect
from flux.core.artifact import BLOCK
from flux.core.control import Collected
from flux.core.errors import Code, FluxError
from flux.core.node import ArtifactReference
from flux.failpoints import Point, run
from flux.testing.clock import FakeClock
from flux.testing.objects import FakeObjectStore, down, slow
from tests.engine.artifacts.kit import Node, noise, write
from tests.engine.artifacts.orders import Case, Process, explore
from tests.trees.kit import differences

GRACE = 3600.0


class World:
    """Nodes, an object store, and a control plane that collects."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.clock = FakeClock()
        self.store = FakeObjectStore(self.clock.wall)
        self.living: set[str] = set()
        self.node = Node(place / "a", self.store, "a")

    def collect(self, store: FakeObjectStore | None = None) -> Collected:
        return run(collect(store or self.store, lambda: frozenset(self.living), self.clock, GRACE))

    def collect_all(self) -> None:
        """Collect until nothing changes."""
        for _ in range(4):
            self.clock.advance(GRACE)
            self.collect()

    def kinds(self) -> dict[str, int]:
        """Return how many objects of each kind there are."""
        kinds: dict[str, int] = {}
        for key in self.store.objects:
            kinds[key.partition("/")[0]] = kinds.get(key.partition("/")[0], 0) + 1
        return kinds

    def restorable(self, reference: ArtifactReference, name: str = "restored") -> None:
        """Fetch an artifact on a fresh node and compare it with what the first one captured."""
        there = Node(self.place / name, self.store, "b")
        there.mover.fetch(reference)
        for restored, captured in zip(there.look(reference), self.node.look(reference), strict=True):
            assert not differences(restored, captured)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def save(world: World, parent: ArtifactReference | None = None, seed: int = 1) -> ArtifactReference:
    """Save an artifact of two blocks and upload it."""
    reference = world.node.save(write(**{f"file{seed}": noise(seed, 2 * BLOCK)}), parent)
    world.node.mover.upload(reference)
    return reference


def test_what_nothing_refers_to_is_marked_and_after_the_grace_deleted(world: World) -> None:
    save(world)
    assert world.collect() == Collected(), "it is too young"
    world.clock.advance(GRACE)
    assert world.collect() == Collected(marked=3)
    assert world.collect() == Collected(), "its tombstones are"
    world.clock.advance(GRACE - 1)
    assert world.collect() == Collected()
    world.clock.advance(1)
    size = sum(len(data) for key, data in world.store.objects.items() if not key.startswith("tombstones/"))
    assert world.collect() == Collected(deleted=3, bytes=size)
    assert world.store.objects == {}


def test_what_refers_to_something_goes_before_it(world: World) -> None:
    save(world)
    world.collect_all()
    deleted = [key.partition("/")[0] for method, key in world.store.calls if method == "delete"]
    assert [kind for kind in deleted if kind != "tombstones" and kind != "intents"] == ["artifacts", "layers", "packs"]
    assert deleted[-2:] == ["packs", "tombstones"]


def test_case_10_parts_of_which_a_successor_restores_or_to_which_a_chain_refers_stay(world: World) -> None:
    original = save(world)
    child = save(world, original, seed=2)
    stranger = save(world, seed=3)
    world.living = {child.id}
    world.collect_all()
    assert world.kinds() == {"artifacts": 1, "layers": 2, "packs": 2}
    world.restorable(child)
    with pytest.raises(FluxError) as raised:
        world.restorable(stranger, "stranger")
    assert raised.value.details["reason"] == "ArtifactMissing"


def test_case_10_a_restore_under_way_is_not_disturbed(world: World) -> None:
    """The living set holds the artifact for as long as a wake refers to it, whatever the sandbox rests on since."""
    original = save(world)
    there = Node(world.place / "b", world.store, "b")
    world.living = {original.id}
    calls = 0

    def meanwhile(method: str, key: str) -> None:
        nonlocal calls
        calls += 1
        world.store.before = lambda method, key: None
        world.collect_all()
        world.store.before = meanwhile

    world.store.before = meanwhile
    there.mover.fetch(original)
    world.store.before = lambda method, key: None
    assert calls > 3
    assert not differences(there.look(original)[0], world.node.look(original)[0])
    assert world.kinds() == {"artifacts": 1, "layers": 1, "packs": 1}


def test_an_upload_under_way_keeps_its_parts_for_as_long_as_it_takes(world: World) -> None:
    reference = world.node.save(write(a=noise(1, 2 * BLOCK)))
    world.living = {reference.id}
    with world.store.failing(down, "put_new", "artifacts/"), pytest.raises(FluxError):
        world.node.mover.upload(reference)
    world.collect_all()
    assert world.kinds() == {"intents": 3, "layers": 1, "packs": 1}
    before = world.store.received
    world.node.mover.upload(reference)
    assert world.store.received - before < BLOCK, "what was sent is used again"
    world.restorable(reference)


def test_intents_go_with_their_artifact(world: World) -> None:
    """A node that is gone for good, or gave an upload up, holds nothing for ever."""
    reference = world.node.save(write(a=noise(1, 2 * BLOCK)))
    with world.store.failing(down, "put_new", "artifacts/"), pytest.raises(FluxError):
        world.node.mover.upload(reference)
    world.collect_all()
    assert world.store.objects == {}


def test_what_has_a_tombstone_is_sent_again_under_another_name(world: World) -> None:
    original = save(world)
    world.clock.advance(GRACE)
    world.collect()
    successor = world.node.save(write(b=noise(2, BLOCK)), original)
    world.living = {successor.id}
    world.node.mover.upload(successor)
    assert world.kinds() == {"artifacts": 2, "layers": 3, "packs": 3, "tombstones": 3}
    world.collect_all()
    world.restorable(successor)


def test_a_node_that_cannot_be_asked_ends_a_collection(world: World) -> None:
    save(world)
    world.clock.advance(GRACE)
    world.collect()
    world.clock.advance(GRACE)
    before = dict(world.store.objects)

    def unknown() -> Collection[str]:
        raise FluxError(Code.UNAVAILABLE, "cannot ask the node a: it does not answer")

    with pytest.raises(FluxError, match="cannot ask the node a"):
        run(collect(world.store, unknown, world.clock, GRACE))
    assert world.store.objects == before


@pytest.mark.parametrize("kind", ["artifacts/", "layers/"])
def test_what_cannot_be_read_ends_a_collection(world: World, kind: str) -> None:
    """It cannot be told what a damaged manifest or layer needs; so nothing at all is deleted."""
    original, other = save(world), save(world, seed=2)
    world.clock.advance(GRACE)
    world.living = {original.id}
    world.collect()
    world.clock.advance(GRACE)
    layer = world.node.layers.read_artifact(original.id).layers[0]
    (key,) = [key for key in world.store.objects if key.startswith(kind) and (original.id in key or layer in key)]
    world.store.objects[key] = world.store.objects[key][:-1]
    before = dict(world.store.objects)
    with pytest.raises(FluxError) as raised:
        world.collect()
    assert raised.value.details["reason"] == "DataLoss"
    assert world.store.objects == before
    assert other.id != original.id


def test_the_clock_set_back_only_delays(world: World) -> None:
    save(world)
    world.clock.advance(GRACE)
    world.collect()
    world.clock.advance(-GRACE)
    assert world.collect() == Collected()
    world.clock.advance(2 * GRACE)
    assert world.collect().deleted == 3


def every_end(world: World, points: list[Point]) -> Iterator[Callable[[], None]]:
    """Yield collections that end at their first, second, … point."""
    for number in range(1, 40):

        def act(number: int = number) -> None:
            steps = collect(world.store, lambda: frozenset(world.living), world.clock, GRACE)
            for _ in range(number):
                point = next(steps, None)
                if point is None:
                    return
                points.append(point)

        yield act


def test_a_crash_at_any_point_is_made_good_by_the_next_run(world: World) -> None:
    original = save(world)
    child = save(world, original, seed=2)
    points: list[Point] = []
    for number, act in enumerate(every_end(world, points)):
        save(world, seed=number + 3)
        world.living = {child.id}
        world.clock.advance(GRACE)
        act()
    assert set(points) == {Point.COLLECT_MARKED, Point.COLLECT_DELETED}
    world.collect_all()
    assert world.kinds() == {"artifacts": 1, "layers": 2, "packs": 2}
    world.restorable(child)


@pytest.mark.parametrize("error", [down, slow])
def test_a_store_that_fails_at_any_call_loses_nothing(world: World, error: Callable[[], FluxError]) -> None:
    original = save(world)
    child = save(world, original, seed=2)
    world.living = {child.id}
    calls = 0
    while True:
        calls += 1
        world.clock.advance(GRACE)
        left = [calls]

        def fail(method: str, key: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise error()

        save(world, seed=calls + 2)
        world.store.before = fail
        try:
            world.collect()
            world.store.before = lambda method, key: None
            break
        except FluxError as raised:
            assert raised.code is Code.UNAVAILABLE
        finally:
            world.store.before = lambda method, key: None
    assert calls > 10
    world.collect_all()
    assert world.kinds() == {"artifacts": 1, "layers": 2, "packs": 2}
    world.restorable(child)


class Orders:
    """The worlds whose interleavings are explored: made once on disk, then again and again in memory."""

    def __init__(self, place: Path, *, marked: bool) -> None:
        first = World(place)
        self.original = save(first)
        self.child = first.node.save(write(b=noise(2, BLOCK)), self.original)
        merged, _ = first.node.capture(write(file1=noise(1, 2 * BLOCK), d=noise(4, BLOCK)))
        self.merged = first.node.artifact(merged, generation=2, parent=self.original.id)
        self.sibling = first.node.save(write(c=noise(3, BLOCK)), self.original)
        first.clock.advance(GRACE)
        if marked:
            first.collect()
        self.objects, self.times = dict(first.store.objects), dict(first.store.times)
        self.now = first.clock.wall()
        self.node = first.node

    def collect(self, store: FakeObjectStore) -> Collected:
        """Collect once without a grace; the original is dead, its successors live."""
        living = frozenset({self.child.id, self.sibling.id, self.merged.id})
        return run(collect(store, lambda: living, FakeClock(self.now), 0.0))

    def build(self, uploads: list[ArtifactReference], collectors: int) -> Case:
        """Return uploads, and collectors that mark and delete without a grace; the original is dead, the rest lives."""
        store = FakeObjectStore(lambda: self.now)
        store.objects.update(self.objects)
        store.times.update(self.times)
        copies = itertools.count(1 << 24)  # a run repeats the one before it, names included

        def collect_twice() -> None:
            for _ in range(2):
                self.collect(store)

        def upload(number: int, reference: ArtifactReference) -> Callable[[], object]:
            mover = self.node.mover_to(store, f"node{number}", lambda: f"{next(copies):08x}")
            return lambda: mover.upload(reference)

        processes = [Process(upload(number, reference)) for number, reference in enumerate(uploads)]
        collecting = [Process(collect_twice) for _ in range(collectors)]

        def check() -> None:
            for process, reference in zip(processes, uploads, strict=True):
                assert not isinstance(process.outcome, Exception), process.outcome
                if process.outcome is not None:
                    whole(store, self.node, reference)
            assert [process.outcome for process in collecting] == [None] * collectors
            for number, reference in enumerate(uploads):
                upload(number, reference)()
            for _ in range(3):
                self.collect(store)
            for reference in uploads:
                whole(store, self.node, reference)

        return Case(store, [*processes, *collecting], check)


def whole(store: FakeObjectStore, node: Node, reference: ArtifactReference) -> None:
    """All that an artifact needs is there: its manifest, and of each layer a copy with all of its packs."""
    from flux.engine.artifacts import remote

    manifest = remote.read_manifest(store, reference)
    for layer_id in manifest.layers:
        copies = [remote.read_copy(store, key) for key in remote.copy_keys(store, layer_id)]
        packs = [all(f"packs/{name}" in store.objects for name in copy.index.packs) for copy in copies]
        assert any(packs), f"the layer {layer_id[:8]} is not whole: {sorted(store.objects)}"


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


class Race:
    """An upload that relies on a pack, a run that marks it on what it knew before, and a run that deletes."""

    def __init__(self, orders: Orders) -> None:
        self.store = orders.build([], 0).store
        mover = orders.node.mover_to(self.store, "node")
        self.upload = Process(lambda: mover.upload(orders.merged))
        self.marking = Process(lambda: orders.collect(self.store))
        self.deleting = Process(lambda: orders.collect(self.store))
        self._next: dict[Process, tuple[str, str]] = {}
        self.store.before = self._stop
        for process in (self.marking, self.deleting, self.upload):
            process.start()
        self.until(self.marking, "put_new", "tombstones/")

    def _stop(self, method: str, key: str) -> None:
        for process in (self.upload, self.marking, self.deleting):
            if process.is_current():
                self._next[process] = (method, key)
                process.stop()

    def until(self, process: Process, method: str, key: str) -> None:
        """Move a process up to a call, which it has not done then; to its end if it never comes to that."""
        while not process.over and not (self._at(process)[0] == method and self._at(process)[1].startswith(key)):
            process.move(kill=False)

    def _at(self, process: Process) -> tuple[str, str]:
        return self._next.get(process, ("", ""))

    def rest(self, process: Process, calls: int | None = None) -> bool:
        """Move a process to its end, or so many calls; tell whether it has ended."""
        while not process.over and calls != 0:
            process.move(kill=False)
            calls = None if calls is None else calls - 1
        return process.over


@pytest.mark.parametrize("order", ["the upload ends meanwhile", "the upload begins meanwhile"])
def test_a_run_that_deletes_is_disturbed_at_any_call(memory: Path, order: str) -> None:
    """The pack is marked after the upload has looked for tombstones, by a run that read the intents before it began."""
    orders = Orders(memory, marked=False)
    number, over = 0, False
    while not over:
        race = Race(orders)
        if order == "the upload begins meanwhile":
            over = race.rest(race.deleting, number)
        race.until(race.upload, "put_new", "packs/")  # it has looked for all that it relies on
        race.rest(race.marking)
        if order == "the upload ends meanwhile":
            over = race.rest(race.deleting, number)
            race.rest(race.upload)
        race.rest(race.deleting)
        race.rest(race.upload)
        race.store.before = lambda method, key: None
        assert isinstance(race.upload.outcome, int), race.upload.outcome
        whole(race.store, orders.node, orders.merged)
        number += 1
    assert number > 10


@pytest.mark.parametrize("marked", [False, True], ids=["nothing is marked", "the original is marked"])
def test_an_upload_and_a_collector_in_every_order(memory: Path, marked: bool) -> None:
    orders = Orders(memory, marked=marked)
    assert explore(lambda: orders.build([orders.merged], 1), switches=2) > 500


@pytest.mark.parametrize("marked", [False, True], ids=["nothing is marked", "the original is marked"])
def test_an_upload_and_a_collector_with_one_of_them_killed_anywhere(memory: Path, marked: bool) -> None:
    orders = Orders(memory, marked=marked)
    assert explore(lambda: orders.build([orders.child], 1), switches=1, kills=True) > 50


def test_two_uploads_and_two_collectors(memory: Path) -> None:
    orders = Orders(memory, marked=False)
    assert explore(lambda: orders.build([orders.child, orders.sibling], 2), switches=1) > 50


def test_two_uploads_of_one_artifact_and_a_collector(memory: Path) -> None:
    orders = Orders(memory, marked=True)
    assert explore(lambda: orders.build([orders.child, orders.child], 1), switches=1) > 50


@pytest.mark.slow
def test_an_upload_and_two_collectors_in_every_order(memory: Path) -> None:
    orders = Orders(memory, marked=False)
    assert explore(lambda: orders.build([orders.child], 2), switches=2) > 1000
