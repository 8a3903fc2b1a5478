"""gRPC service and client: what the node says arrives as it was said; nothing else is taken for its word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flux.api.node.client import NodeClient
from flux.api.node.server import NodeServer
from flux.api.node.service import CALLS, NAME
from flux.core import fence, node
from flux.core.errors import Code, FluxError
from flux.core.fence import Fence, Reason, Refusal, Teardown
from flux.core.lifecycle import NodeState
from flux.core.route import Execution, Route
from flux.core.sandbox import Sandbox

ROUTE = Route(generation=2, attempt_id="a2", pod_uid="p2")
EXECUTION = Execution(generation=2, pod_uid="p2")
ARTIFACT = node.ArtifactReference(id="0" * 32, digest="1" * 64)
SANDBOX = Sandbox(
    id="s1",
    kind="procbox",
    layout="managed",
    state=NodeState.CREATED,
    created_at=1.5,
    root_device=1,
    root_inode=2,
    metadata={"é": "ü"},
)


class Scripted:
    """A node that answers with what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.hold = threading.Event()
        self.hold.set()

    def _answer(self, name: str, request: Any = None) -> Any:
        self.asked.append(request)
        self.hold.wait(10)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __getattr__(self, name: str) -> Any:
        return lambda *request: self._answer(name, *request)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def server(scripted: Scripted) -> Iterator[NodeServer]:
    made = NodeServer(scripted, "127.0.0.1:0", "secret")  # type: ignore[arg-type]
    made.start()
    yield made
    scripted.hold.set()
    made.stop(0)


@pytest.fixture
def client(server: NodeServer) -> Iterator[NodeClient]:
    made = NodeClient(f"127.0.0.1:{server.port}", "secret")
    yield made
    made.close()


CASES: list[tuple[str, Any, Any]] = [
    (
        "activate",
        node.Activate(sandbox_id="s1", node_store_id="n1", route=ROUTE, sandbox=SANDBOX, artifact=ARTIFACT),
        node.Activated(route=ROUTE, credential="c", address="http://127.0.0.1:1"),
    ),
    (
        "activate",
        node.Activate(sandbox_id="s1", node_store_id="n1", route=ROUTE, sandbox=SANDBOX, create=True),
        node.Activated(route=ROUTE, credential="c"),
    ),
    (
        "suspend",
        node.Suspend(sandbox_id="s1", node_store_id="n1", execution=EXECUTION),
        node.Suspended(generation=2, artifact=ARTIFACT, new_job=True),
    ),
    (
        "stop",
        node.Stop(sandbox_id="s1", node_store_id="n1", execution=EXECUTION),
        node.Stopped(generation=2),
    ),
    (
        "tear_down",
        node.TearDown(sandbox_id="s1", node_store_id="n1", execution=EXECUTION),
        node.TornDown(outcome=Teardown.ROLLED_BACK, artifact=ARTIFACT, floor=2),
    ),
    ("evict", node.Evict(sandbox_id="s1", node_store_id="n1", execution=EXECUTION), None),
    ("destroy", node.Destroy(sandbox_id="s1", node_store_id="n1"), node.Destroyed(sandbox_id="s1")),
    (
        "capture",
        node.Capture(sandbox_id="s1", node_store_id="n1", execution=EXECUTION, snapshot_id="x1"),
        node.Captured(artifact=ARTIFACT),
    ),
    (
        "inventory",
        node.Inventory(node_store_id="n1", facts=(fence.Fact(sandbox_id="s1", generation=2),)),
        node.Inventoried(rows=(), done=("s1",)),
    ),
]


@pytest.mark.parametrize(("method", "request_", "reply"), CASES, ids=lambda value: type(value).__name__)
def test_each_call_carries_request_and_reply(
    scripted: Scripted, client: NodeClient, method: str, request_: Any, reply: Any
) -> None:
    scripted.answers[method] = reply
    assert getattr(client, method)(request_) == reply
    assert scripted.asked == [request_]


def test_the_calls_without_a_request(scripted: Scripted, client: NodeClient) -> None:
    scripted.answers["list"] = node.Listed(rows=())
    scripted.answers["describe"] = described = node.Described(
        node_store_id="n1", kinds=("procbox",), address="", disk_total=2, disk_free=1, running=0, version="1"
    )
    assert client.list() == node.Listed(rows=())
    assert client.describe() == described


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_arrives_as_it_was_made(scripted: Scripted, client: NodeClient, reason: Reason) -> None:
    refusal = Refusal(reason=reason, message=f"attempt a2 … {reason}")
    made = fence.refused(
        refusal, "s1", "start", node_store_id="n1", route=ROUTE, fence=Fence(claimed=7, ended=(
            fence.Ended(generation=1, ended_as=fence.EndedAs.SUSPENDED, artifact_id="a"),
        ))
    )  # fmt: skip
    scripted.answers["activate"] = made
    with pytest.raises(FluxError) as caught:
        client.activate(CASES[0][1])
    assert (caught.value.code, caught.value.message, caught.value.details) == (made.code, made.message, made.details)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_has_the_status_that_the_contract_names(
    scripted: Scripted, server: NodeServer, reason: Reason
) -> None:
    scripted.answers["describe"] = fence.refused(
        Refusal(reason=reason, message="m"), "s1", "start", node_store_id="n1", route=ROUTE, fence=Fence()
    )
    assert _status(server, "Describe", b"", "Bearer secret") is getattr(grpc.StatusCode, fence.STATUS[reason][1])


def test_details_that_are_too_long_keep_what_decisions_need(scripted: Scripted, client: NodeClient) -> None:
    kept = {"node_store_id": "n1", "reason": "DataLoss", "grpc_status": "DATA_LOSS"}
    scripted.answers["describe"] = FluxError(Code.INTERNAL, "m" * 5000, {**kept, "much": "x" * 1_000_000})
    with pytest.raises(FluxError) as caught:
        client.describe()
    assert caught.value.details == kept
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    "answer",
    [
        FluxError(Code.UNAVAILABLE, "the database is locked"),
        FluxError(Code.FENCED, "no details", {"reason": "RolledBackAttempt"}),
        RuntimeError("a fault"),
    ],
)
def test_what_the_node_has_not_signed_is_an_unknown_outcome(
    scripted: Scripted, client: NodeClient, answer: Exception
) -> None:
    scripted.answers["activate"] = answer
    with pytest.raises(FluxError) as caught:
        client.activate(CASES[0][1])
    assert caught.value.code is Code.UNKNOWN_OUTCOME
    assert "node_store_id" not in caught.value.details


def test_a_call_that_takes_too_long_is_an_unknown_outcome(scripted: Scripted, server: NodeServer) -> None:
    scripted.answers["describe"] = RuntimeError("later")
    scripted.hold.clear()
    client = NodeClient(f"127.0.0.1:{server.port}", "secret", deadline_factor=0.01)
    with pytest.raises(FluxError) as caught:
        client.describe()
    assert caught.value.code is Code.UNKNOWN_OUTCOME
    assert "deadline" in caught.value.message
    client.close()


def test_a_node_that_nobody_listens_for_is_unavailable_and_nothing_was_sent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = NodeClient(f"127.0.0.1:{taken.getsockname()[1]}", "secret")
        with pytest.raises(FluxError) as caught:
            client.activate(CASES[0][1])
        client.close()
    assert caught.value.code is Code.UNAVAILABLE
    assert "nothing was sent" in caught.value.message


def test_a_connection_that_breaks_after_the_request_is_an_unknown_outcome(
    scripted: Scripted, server: NodeServer, client: NodeClient
) -> None:
    scripted.answers["describe"] = RuntimeError("later")
    scripted.hold.clear()
    threading.Timer(0.2, server.stop, (0,)).start()
    with pytest.raises(FluxError) as caught:
        client.describe()
    assert caught.value.code is Code.UNKNOWN_OUTCOME


def test_a_node_that_comes_back_is_found_again(scripted: Scripted, server: NodeServer, client: NodeClient) -> None:
    scripted.answers["list"] = node.Listed(rows=())
    client.list()
    server.stop(0)
    with pytest.raises(FluxError):
        client.list()
    again = NodeServer(scripted, f"127.0.0.1:{server.port}", "secret")  # type: ignore[arg-type]
    again.start()
    reached = threading.Event()
    for _ in range(100):
        try:
            client.list()
        except FluxError:
            reached.wait(0.05)
            continue
        reached.set()
        break
    assert reached.is_set()
    again.stop(0)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("header", ["", "Bearer wrong", "secret", "bearer secret", "Bearer secre", "Bearer secret2"])
def test_without_the_token_nothing_is_done(scripted: Scripted, server: NodeServer, name: str, header: str) -> None:
    assert _status(server, name, b"", header) is grpc.StatusCode.UNAUTHENTICATED
    assert scripted.asked == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(CALLS)), raw=st.binary(max_size=120))
def test_bytes_that_are_no_request_are_refused_and_the_server_goes_on(
    scripted: Scripted, server: NodeServer, name: str, raw: bytes
) -> None:
    scripted.answers = {call.method: RuntimeError("reached") for call in CALLS.values()}
    status = _status(server, name, raw, "Bearer secret")
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
    if status is grpc.StatusCode.INTERNAL:
        assert scripted.asked


def test_create_and_start_are_not_taken_for_each_other(scripted: Scripted, server: NodeServer) -> None:
    from flux.api.node.messages import encode

    raw = encode(CASES[1][1]).SerializeToString()
    assert _status(server, "Start", raw, "Bearer secret") is grpc.StatusCode.INVALID_ARGUMENT
    assert scripted.asked == []


def test_two_servers_do_not_share_an_address(scripted: Scripted, server: NodeServer) -> None:
    with pytest.raises(FluxError) as caught:
        NodeServer(scripted, f"127.0.0.1:{server.port}", "secret")  # type: ignore[arg-type]
    assert caught.value.code is Code.UNAVAILABLE


def _status(server: NodeServer, name: str, raw: bytes, header: str) -> grpc.StatusCode:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary(f"/{NAME}/{name}")
        try:
            call(raw, timeout=10, metadata=(("authorization", header),))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK
