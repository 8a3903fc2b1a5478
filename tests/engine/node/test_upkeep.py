"""The node's own work: uploads that back off, collection that spares what is referred to, orphans (§6, §8)."""

from __future__ import annotations

from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.route import Execution
from flux.engine.node import activate, collect, uploads
from flux.failpoints import Point
from flux.testing.executions import Tree
from tests.engine.node.kit import ID, Kit, failing

DOWN = FluxError(Code.UNAVAILABLE, "the store is down")


def test_an_upload_backs_off_and_is_durable_only_when_confirmed(kit: Kit) -> None:
    original = kit.suspended()
    kit.machine.remote.down = DOWN
    waits = []
    for _ in range(5):
        waited = 0
        while not kit.manager.upload_once():
            kit.clock.advance(0.5)
            waited += 1
        kit.crash()
        waits.append(waited)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert not kit.must().backup
    report = kit.manager.list().artifacts[0]
    assert (report.state, report.error) == ("uploading", "the store is down")
    kit.machine.remote.down = None
    kit.clock.advance(1000)
    kit.backed_up()
    assert kit.must().backup
    assert list(kit.machine.remote.saved) == [original.id]
    assert (kit.manager.list().artifacts[0].state, kit.jobs()) == ("durable", 1)


def test_an_upload_that_is_waited_for_tells_why_it_failed(kit: Kit) -> None:
    original = kit.suspended()
    kit.machine.remote.down = DOWN
    with failing(None, Code.UNAVAILABLE, "the store is down"):
        kit.manager.upload_once(original.id)
    kit.machine.remote.down = None
    assert kit.manager.upload_once(original.id)
    assert not kit.manager.upload_once(original.id)


def test_uploads_are_done_one_after_the_other(kit: Kit) -> None:
    kit.suspended()
    first = uploads.work_once(kit.node)
    assert next(first) is Point.UPLOAD_TAKEN
    assert not kit.manager.upload_once()


def test_an_upload_that_ends_during_an_activation_does_not_disturb_it(kit: Kit) -> None:
    original = kit.suspended()
    starting = activate.steps(kit.node, kit.activation(2, original))
    while next(starting) is not Point.ACTIVATE_PREPARED:
        pass
    kit.backed_up()
    for _ in starting:
        pass
    assert (kit.must().state, kit.must().backup) == (NodeState.RUNNING, True)


def test_the_predecessor_stays_until_its_successor_is_durable(kit: Kit) -> None:
    """I7."""
    original = kit.suspended()
    kit.activate(2, original)
    second = kit.suspend(2).artifact
    kit.manager.upload_once(original.id)
    kit.manager.collect()
    assert set(kit.machine.saved) == {original.id, second.id}
    kit.manager.upload_once(second.id)
    kit.manager.collect()
    assert set(kit.machine.saved) == {second.id}
    assert kit.artifacts() == [second.id]


def test_nothing_is_collected_while_artifacts_are_made_or_restored(kit: Kit) -> None:
    """I7: neither what is being restored nor what is captured and not named yet."""
    original = kit.evicted()
    starting = activate.steps(kit.node, kit.activation(2, original))
    while next(starting) is not Point.ACTIVATE_PREPARED:
        pass
    assert kit.manager.collect() == 0
    assert list(kit.machine.saved) == [original.id]
    for _ in starting:
        pass
    collecting = collect.steps(kit.node)
    assert next(collecting) is Point.COLLECT_MARKED
    waiting = activate.steps(kit.node, kit.activation(1, sandbox_id="s2"))
    reached = [next(waiting) for _ in range(4)]
    assert reached[-2:] == [Point.ACTIVATE_JOINED, Point.ACTIVATE_JOINED]
    for _ in collecting:
        pass
    assert next(waiting) is Point.ACTIVATE_ADMITTED


def test_orphans_go_after_their_age_and_never_come_back(kit: Kit) -> None:
    kit.activate(2)
    for key in ((ID, 1), ("lost", 7)):
        kit.machine.trees[key] = Tree(files={}, restored_from=None, made_at=kit.clock.wall())
        kit.machine.running.add(key)
    assert kit.manager.reconcile() == []
    kit.clock.advance(61)
    assert kit.manager.reconcile() == ["lost/7", f"{ID}/1"]
    assert kit.machine.generations_running(ID) == [2]
    assert ("lost", 7) not in kit.machine.running
    with failing("RetiredGeneration", Code.FENCED):
        kit.activate(7, sandbox_id="lost")


def test_files_of_a_sandbox_as_a_whole_go_only_without_its_row(kit: Kit) -> None:
    kit.activate(1)
    for sandbox_id in (ID, "lost"):
        kit.machine.trees[sandbox_id, 0] = Tree(files={}, restored_from=None, made_at=kit.clock.wall())
    kit.clock.advance(61)
    assert kit.manager.reconcile() == ["lost/0"]
    assert kit.machine.generations_running(ID) == [1]
    assert kit.fence("lost").retired == 0


def test_a_node_says_what_it_is(kit: Kit) -> None:
    kit.activate(1)
    found = kit.manager.describe()
    assert (found.node_store_id, found.kinds, found.running, found.address) == (
        kit.manager.store_id, ("fake",), 1, "http://node",
    )  # fmt: skip
    assert kit.must().is_execution(Execution(generation=1, pod_uid="p1"))


class Counts:
    """Hears what is counted."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self.noted: list[tuple[str, dict[str, object]]] = []

    def operation(self, name: str, outcome: str, seconds: float) -> None:
        """Forget it."""

    def count(self, name: str, amount: int = 1) -> None:
        self.counted[name] = self.counted.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Forget it."""

    def note(self, event: str, **fields: object) -> None:
        self.noted.append((event, fields))


def test_refusals_and_uploads_are_counted(kit: Kit) -> None:
    kit.manager.node.observer = counts = Counts()
    original = kit.rolled_back()
    told = [(event, fields["generation"], fields["attempt"]) for event, fields in counts.noted]
    assert told == [("activated", 1, "a1"), ("suspended", 1, "a1"), ("rolled back", 2, "a2")]
    assert counts.noted[-1][1]["reason"] == "cannot prepare: the test says so"
    for _ in range(2):
        with failing("RolledBackAttempt", Code.FENCED):
            kit.activate(2, original)
    assert kit.manager.upload_once()
    assert counts.counted["fence.RolledBackAttempt"] == 2
    assert counts.counted["upload.done"] == 1
    assert "uploaded_bytes" in counts.counted
