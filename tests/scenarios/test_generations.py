"""The scenarios of the design, against real processes: a first activation fails, and everything comes too late (§11).

Each is: create, write a file, pause, and connect, where generation 2 fails its prepare and generation 3 succeeds in the
same call. What is late goes straight to the node, over gRPC.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import grpc
import msgspec
import pytest

from flux.api.node.client import NodeClient
from flux.api.node.statuses import status_of
from flux.core.errors import Code, FluxError
from flux.core.fence import EndedAs, Teardown
from flux.core.node import Activate, ArtifactReference, Evict, TearDown, TornDown
from flux.core.receipts import DeleteReceipt
from flux.core.route import Execution, Route
from tests.cases.kit import Reply
from tests.scenarios.daemons import Platform, until
from tests.scenarios.inside import is_unchanged, published

pytestmark = pytest.mark.root

CONTENT = b"what was there before\n"
PATH = "/home/user/kept"


class Story:
    """One sandbox, paused with a file in it, and its original artifact in the object store."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.rest = platform.rest
        self.node: NodeClient = platform.client()
        self.store = platform.node_store
        self.before = set(published(platform.objects))
        self.id: str = self.rest.create()["id"]
        self.rest.write(self.id, PATH, CONTENT)
        self.first = Execution(generation=1, pod_uid=str(self.row["pod_uid"]))
        paused = self.rest.pause(self.id, durable=True)
        [only] = self.store.artifacts(self.id)
        self.original = ArtifactReference(id=only["id"], digest=only["digest"], durable=True)
        assert (paused["artifact_id"], paused["artifact_durable"]) == (only["id"], True)

    @property
    def row(self) -> dict[str, Any]:
        """Its row on the node."""
        row = self.store.row(self.id)
        assert row is not None
        return row

    @contextmanager
    def between(self) -> Iterator[tuple[Activate, Future[Reply]]]:
        """Connect, and stand between the rollback of generation 2 and the mint of generation 3.

        Gives the request of generation 2 as it was sent, and the connect, which ends with the block.
        """
        control, node = self.platform.control.faults, self.platform.node.faults
        fresh = control.reached("wake.answered")
        control.arm("wake.answered * 1 hold")
        node.arm(f"activate.prepare {self.id} 1 error")
        woken = self.platform.later(self.rest.resume, self.id)
        try:
            until(lambda: control.reached("wake.answered") > fresh, "generation 2 is answered")
            request = self.platform.control_store.request(self.id)
            assert request.route.generation == 2
            assert request.digest() == self.store.fence(self.id)["claimed_digest"]
            self.is_rolled_back(request)
            yield request, woken
        finally:
            control.clear()
            node.clear()
            woken.exception()

    def is_rolled_back(self, request: Activate) -> None:
        """Assert that everything is as it was before generation 2, the fence and the receipt aside."""
        row, receipt = self.row, self.store.rollback(self.id)
        assert row["state"] == "suspended"
        assert (row["generation"], row["pod_uid"]) == (1, self.first.pod_uid)
        assert (row["artifact_id"], row["prior_generation"], row["restoring"]) == (self.original.id, None, None)
        assert receipt is not None
        assert (receipt.generation, receipt.attempt_id, receipt.pod_uid) == (
            2,
            request.route.attempt_id,
            request.route.pod_uid,
        )
        assert (receipt.restored_state, receipt.artifact_id) == ("suspended", self.original.id)
        assert self.store.fence(self.id)["claimed"] == 2

    def evict(self) -> None:
        """Let the sandbox leave the node's disk: only the object store has it then."""
        request = Evict(sandbox_id=self.id, node_store_id=self.store.id, execution=self.first)

        def evicted() -> DeleteReceipt | None:
            with contextlib.suppress(FluxError):  # the node may be about to evict it by itself
                self.node.evict(request)
            return self.store.deletion(self.id)

        with self.platform.node.later(7200):
            receipt = until(evicted, "it is evicted")
        assert (receipt.reason, receipt.covers_generation) == ("evicted", 2)
        assert self.store.row(self.id) is None
        until(
            lambda: not (self.store.state / "artifacts" / f"{self.original.id}.json").exists(), "no local copy is left"
        )

    def refused(self, request: Activate) -> FluxError:
        """Send an activation straight to the node; it is refused and changes nothing at all (I10)."""
        before = self.store.everything(self.id)
        with pytest.raises(FluxError) as caught:
            self.node.activate(request)
        assert is_unchanged(before, self.store.everything(self.id))
        details = caught.value.details
        assert (details["node_store_id"], details["generation"]) == (self.store.id, request.route.generation)
        assert details["attempt_id"] == request.route.attempt_id
        return caught.value

    def tear_down(self, execution: Execution) -> TornDown:
        """Delete a pod: its execution is torn down."""
        request = TearDown(sandbox_id=self.id, node_store_id=self.store.id, execution=execution)
        return self.node.tear_down(request)

    def ends_well(self, woken: Reply, generation: int) -> None:
        """Assert what the table says of every scenario: one artifact, one job, the original restored, all usable."""
        assert (woken["state"], woken["generation"]) == ("running", generation)
        assert (woken["artifact_id"], woken["woke_from"]) == (self.original.id, "artifact")
        self.has_one_artifact()
        assert self.row["state"] == "running"
        assert (self.row["generation"], self.row["artifact_id"]) == (generation, self.original.id)
        assert self.rest.read(self.id, PATH) == CONTENT
        ended = self.rest.run(self.id, f"cat {PATH}; echo more >>{PATH}")
        assert (ended["exit_code"], ended["stdout"].encode()) == (0, CONTENT)
        assert self.rest.read(self.id, PATH) == CONTENT + b"more\n"

    def has_one_artifact(self) -> None:
        """Assert that there is the original, once, wherever one looks, and that it was uploaded once."""
        only = [(self.original.id, self.original.digest)]
        if self.store.row(self.id) is not None:
            assert [(row["id"], row["digest"]) for row in self.store.artifacts(self.id)] == only
        assert [(row["id"], row["digest"]) for row in self.rest.artifacts(self.id)] == only
        assert [row["id"] for row in self.platform.control_store.artifacts(self.id)] == [self.original.id]
        assert [job["artifact_id"] for job in self.store.jobs(self.id)] in ([], [self.original.id])
        assert set(published(self.platform.objects)) - self.before == {self.original.id}
        assert self.rest.verify(self.original.id)["digest"] == self.original.digest

    def close(self) -> None:
        """Delete the sandbox."""
        self.node.close()
        self.rest.delete(self.id)


@pytest.fixture
def story(anywhere: Platform) -> Iterator[Story]:
    made = Story(anywhere)
    yield made
    made.close()


def is_refusal(error: FluxError, reason: str, status: grpc.StatusCode, said: str) -> None:
    """Assert a refusal by what programs and people are told."""
    assert (error.code, error.details["reason"], status_of(error)) == (Code.FENCED, reason, status)
    assert said in error.message


def is_late(story: Story, request: Activate, *, evicted: bool) -> None:
    """Assert what the same attempt gets after its rollback, or after the sandbox has left the node."""
    error = story.refused(request)
    if evicted:
        said = "generation 2 was retired on this node"
        is_refusal(error, "RetiredGeneration", grpc.StatusCode.FAILED_PRECONDITION, said)
    else:
        said = f"attempt {request.route.attempt_id} was rolled back"
        is_refusal(error, "RolledBackAttempt", grpc.StatusCode.FAILED_PRECONDITION, said)
    assert error.details["floor"] == 2
    assert (2, "rolled_back") in [(ended["generation"], ended["ended_as"]) for ended in error.details["ended"]]


def supersedes(story: Story, request: Activate, *, evicted: bool) -> None:
    """Tear the rolled-back generation down, as the deletion of its pod does: nothing is captured (I5)."""
    torn = story.tear_down(Execution(generation=2, pod_uid=request.route.pod_uid))
    if evicted:
        assert torn.outcome is Teardown.GONE
        assert any((ended.generation, ended.ended_as) == (2, EndedAs.ROLLED_BACK) for ended in torn.ended)
    else:
        assert (torn.outcome, torn.artifact) == (Teardown.ROLLED_BACK, story.original)
    assert not torn.new_job
    assert story.store.fence(story.id)["retired"] >= 2
    story.has_one_artifact()


EVICTED = pytest.mark.parametrize("evicted", [False, True], ids=["before-eviction", "after-eviction"])


@EVICTED
def test_1_the_same_attempt_is_retried(story: Story, evicted: bool) -> None:
    with story.between() as (request, woken):
        if evicted:
            story.evict()
        is_late(story, request, evicted=evicted)
        supersedes(story, request, evicted=evicted)
    story.ends_well(woken.result(), 3)
    is_refusal(
        story.refused(request), "RetiredGeneration", grpc.StatusCode.FAILED_PRECONDITION, "generation 2 was retired"
    )


@EVICTED
def test_2_a_second_wake_is_sent_during_the_first(story: Story, evicted: bool) -> None:
    with story.between() as (request, woken):
        second = story.platform.later(story.rest.resume, story.id)
        if evicted:
            story.evict()
        is_late(story, request, evicted=evicted)
        supersedes(story, request, evicted=evicted)
        assert not second.done()
    first = woken.result()
    assert second.result() == first
    story.ends_well(first, 3)


@EVICTED
def test_3_a_new_attempt_for_the_failed_generation(story: Story, evicted: bool) -> None:
    with story.between() as (request, woken):
        if evicted:
            story.evict()
        other = msgspec.structs.replace(request, route=Route(generation=2, attempt_id="other", pod_uid="otherpod"))
        error = story.refused(other)
        if evicted:
            said = "generation 2 was retired on this node"
            is_refusal(error, "RetiredGeneration", grpc.StatusCode.FAILED_PRECONDITION, said)
        else:
            is_refusal(error, "RouteHeld", grpc.StatusCode.ABORTED, "generation 2 was claimed by attempt")
        supersedes(story, request, evicted=evicted)
    story.ends_well(woken.result(), 3)


@EVICTED
def test_4_the_pod_is_deleted_and_nothing_is_retried(story: Story, evicted: bool) -> None:
    with story.between() as (request, woken):
        if evicted:
            story.evict()
        supersedes(story, request, evicted=evicted)
    story.ends_well(woken.result(), 3)


@EVICTED
def test_5_the_retry_comes_after_generation_3_was_claimed(story: Story, evicted: bool) -> None:
    node = story.platform.node.faults
    with story.between() as (request, woken):
        if evicted:
            story.evict()
        held = node.reached("activate.prepare")
        node.replace(f"activate.prepare {story.id} 1 hold")
        if story.platform.split:
            story.platform.control.faults.clear()
        until(lambda: node.reached("activate.prepare") > held, "generation 3 prepares")
        assert (story.row["state"], story.row["generation"]) == ("activating", 3)
        cold = msgspec.structs.replace(request, artifact=None)
        for late in (request, cold, msgspec.structs.replace(cold, create=True)):
            error = story.refused(late)
            reason = "RetiredGeneration" if evicted else "StaleGeneration"
            is_refusal(error, reason, grpc.StatusCode.FAILED_PRECONDITION, "generation 2")
            assert error.details["floor"] == 3
        torn = story.tear_down(Execution(generation=2, pod_uid=request.route.pod_uid))
        assert (torn.outcome, torn.new_job) == (Teardown.NEWER, False)
    story.ends_well(woken.result(), 3)


def test_6_a_normal_suspend_and_restore(story: Story) -> None:
    story.ends_well(story.rest.resume(story.id), 2)
    assert story.store.rollback(story.id) is None


def test_the_wake_succeeds_in_the_same_call_with_nobody_else_about(story: Story) -> None:
    story.platform.node.faults.arm(f"activate.prepare {story.id} 1 error")
    story.ends_well(story.rest.resume(story.id), 3)
    assert story.store.endings(story.id).get(2, ("rolled_back", None))[0] == "rolled_back"
