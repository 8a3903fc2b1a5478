"""Calls that a node must refuse, sent straight to it: each gets a typed error, and nothing at all has changed (I10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest

from flux.api.node.client import NodeClient
from flux.api.node.statuses import status_of
from flux.core.errors import Code, FluxError
from flux.core.fence import Teardown
from flux.core.node import Activate, ArtifactReference, Capture, Destroy, Evict, Stop, Suspend, TearDown
from flux.core.route import GENERATION_MAX, Execution, Route
from flux.core.sandbox import Sandbox
from tests.scenarios.daemons import Platform
from tests.scenarios.inside import is_unchanged

pytestmark = pytest.mark.root

FILE, CONTENT = "/home/user/file", b"kept\n"


class Running:
    """A sandbox that runs as generation 2, and its node."""

    def __init__(self, flux: Platform) -> None:
        self.flux = flux
        self.node: NodeClient = flux.client()
        self.store = flux.node_store.id
        self.id: str = flux.rest.create()["id"]
        flux.rest.write(self.id, FILE, CONTENT)
        self.old = self.execution
        self.artifact = str(flux.rest.pause(self.id, durable=True)["artifact_id"])
        flux.rest.resume(self.id)

    @property
    def execution(self) -> Execution:
        """Who holds the row."""
        row = self.row
        return Execution(generation=row["generation"], pod_uid=row["pod_uid"])

    @property
    def row(self) -> dict[str, Any]:
        """The row on the node."""
        row = self.flux.node_store.row(self.id)
        assert row is not None
        return row

    @property
    def request(self) -> Activate:
        """The request that generation 2 was started by, word for word."""
        row = self.row
        [artifact] = self.flux.node_store.artifacts(self.id)
        request = Activate(
            sandbox_id=self.id,
            node_store_id=self.store,
            route=Route(generation=row["generation"], attempt_id=row["attempt_id"], pod_uid=row["pod_uid"]),
            sandbox=msgspec.json.decode(self.flux.control_store.row(self.id)["record"], type=Sandbox),
            artifact=ArtifactReference(id=artifact["id"], digest=artifact["digest"], durable=True),
        )
        assert request.digest() == self.flux.node_store.fence(self.id)["claimed_digest"]
        return request

    def refuses(self, call: Callable[[], Any], code: Code, reason: str, status: grpc.StatusCode) -> FluxError:
        """Assert that a call is refused, and that it changes nothing."""
        before, known = self.flux.node_store.everything(self.id), self.flux.control_store.row(self.id)
        with pytest.raises(FluxError) as caught:
            call()
        error = caught.value
        assert (error.code, error.details["reason"], status_of(error)) == (code, reason, status)
        assert error.details["node_store_id"] == self.flux.node_store.id
        assert is_unchanged(before, self.flux.node_store.everything(self.id))
        assert self.flux.control_store.row(self.id) == known
        assert self.flux.rest.read(self.id, FILE) == CONTENT
        return error


@pytest.fixture
def running(anywhere: Platform) -> Iterator[Running]:
    made = Running(anywhere)
    yield made
    made.node.close()
    made.flux.rest.delete(made.id)


CALLS: dict[str, Callable[[Running, Execution], Any]] = {
    "suspend": lambda on, who: on.node.suspend(Suspend(sandbox_id=on.id, node_store_id=on.store, execution=who)),
    "stop": lambda on, who: on.node.stop(Stop(sandbox_id=on.id, node_store_id=on.store, execution=who)),
    "evict": lambda on, who: on.node.evict(Evict(sandbox_id=on.id, node_store_id=on.store, execution=who)),
    "capture": lambda on, who: on.node.capture(
        Capture(sandbox_id=on.id, node_store_id=on.store, execution=who, snapshot_id="late")
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_older_or_unknown_generation(running: Running, call: str) -> None:
    now = running.execution
    others = [
        running.old,
        Execution(generation=99, pod_uid=now.pod_uid),
        Execution(generation=GENERATION_MAX, pod_uid=now.pod_uid),
        Execution(generation=now.generation, pod_uid="another"),
    ]
    for other in others:
        said = running.refuses(
            lambda who=other: CALLS[call](running, who),  # type: ignore[misc]
            Code.FENCED,
            "StaleGeneration",
            grpc.StatusCode.FAILED_PRECONDITION,
        )
        assert said.details["floor"] == 2


@pytest.mark.parametrize("generation", [0, -1])
def test_no_generation_at_all(running: Running, generation: int) -> None:
    with pytest.raises(FluxError) as caught:
        CALLS["suspend"](running, Execution(generation=generation, pod_uid="pod"))
    assert "generation" in caught.value.message
    assert running.row["state"] == "running"


def test_an_attempt_that_is_repeated_gets_the_same_answer(running: Running) -> None:
    before = running.flux.node_store.everything(running.id)
    first, second = running.node.activate(running.request), running.node.activate(running.request)
    assert first == second
    assert first.route == running.request.route
    assert is_unchanged(before, running.flux.node_store.everything(running.id))


def test_an_attempt_id_is_used_again_for_another_request(running: Running) -> None:
    same = running.request
    others = [
        msgspec.structs.replace(same, artifact=None),
        msgspec.structs.replace(same, artifact=ArtifactReference(id="0" * 32, digest="0" * 64)),
        msgspec.structs.replace(same, sandbox=msgspec.structs.replace(same.sandbox, environment={"A": "b"})),
        msgspec.structs.replace(same, route=msgspec.structs.replace(same.route, generation=3)),
        msgspec.structs.replace(same, route=msgspec.structs.replace(same.route, pod_uid="another")),
    ]
    for other in others:
        running.refuses(
            lambda late=other: running.node.activate(late),  # type: ignore[misc]
            Code.INVALID,
            "AttemptReused",
            grpc.StatusCode.INVALID_ARGUMENT,
        )


def test_a_newer_generation_while_one_runs(running: Running) -> None:
    route = Route(generation=3, attempt_id="newer", pod_uid="newer")
    newer = msgspec.structs.replace(running.request, route=route)
    running.refuses(
        lambda: running.node.activate(newer),
        Code.FENCED,
        "PredecessorRunning",
        grpc.StatusCode.FAILED_PRECONDITION,
    )


def test_a_cold_start_of_what_is_saved(running: Running) -> None:
    running.flux.rest.pause(running.id)
    route = Route(generation=9, attempt_id="cold", pod_uid="cold")
    [current] = [running.row["artifact_id"]]
    before = running.flux.node_store.everything(running.id)
    with pytest.raises(FluxError) as caught:
        running.node.activate(
            Activate(
                sandbox_id=running.id,
                node_store_id=running.store,
                route=route,
                sandbox=msgspec.json.decode(running.flux.control_store.row(running.id)["record"], type=Sandbox),
            )
        )
    assert (caught.value.code, caught.value.details["reason"]) == (Code.INVALID, "ColdStartOfSaved")
    assert is_unchanged(before, running.flux.node_store.everything(running.id))
    assert running.flux.rest.resume(running.id)["artifact_id"] == current


def test_a_call_for_another_store(running: Running) -> None:
    running.store = "0" * 32
    for call in CALLS.values():
        running.refuses(
            lambda act=call: act(running, running.execution),  # type: ignore[misc]
            Code.FENCED,
            "OtherStore",
            grpc.StatusCode.FAILED_PRECONDITION,
        )


def test_a_sandbox_that_nobody_knows(anywhere: Platform) -> None:
    node, store = anywhere.client(), anywhere.node_store.id
    who = Execution(generation=7, pod_uid="pod")
    with pytest.raises(FluxError) as caught:
        node.suspend(Suspend(sandbox_id="unknown7", node_store_id=store, execution=who))
    assert (caught.value.code, caught.value.details["reason"]) == (Code.NOT_FOUND, "UnknownSandbox")
    torn = node.tear_down(TearDown(sandbox_id="unknown7", node_store_id=store, execution=who))
    assert (torn.outcome, torn.artifact, torn.ended, torn.floor) == (Teardown.GONE, None, (), 7)
    assert anywhere.node_store.fence("unknown7")["retired"] == 7
    assert node.destroy(Destroy(sandbox_id="unknown7", node_store_id=store)).sandbox_id == "unknown7"
    receipt = anywhere.node_store.deletion("unknown7")
    assert receipt is not None and receipt.covers_generation == GENERATION_MAX


def test_a_token_that_is_not_the_nodes(anywhere: Platform) -> None:
    stranger = NodeClient(anywhere.node.node_address, "guessed")
    with pytest.raises(FluxError) as caught:
        stranger.list()
    stranger.close()
    assert "node.token" in caught.value.message
