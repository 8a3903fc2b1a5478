"""An engine in this process and one behind HTTP give the same JSON for the same calls."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flux.api.client import Client
from flux.api.embedded import EmbeddedClient
from flux.api.http import HttpClient
from flux.api.node.server import NodeServer
from flux.api.operations import OPERATIONS
from flux.api.rest.application import build
from flux.api.rest.gate import UserGate
from flux.api.rest.server import HttpService, Listeners
from flux.app import config
from flux.app.addresses import Address, bind_tcp, bind_unix
from flux.app.compose import compose
from flux.app.open import local_actor
from flux.app.work import Workers
from flux.core.errors import FluxError
from flux.core.requests import (
    AddNode,
    Approve,
    CreateKey,
    CreateSandbox,
    Decide,
    DryRun,
    Exec,
    Fork,
    Pause,
    Resume,
    Speculate,
    TakeSnapshot,
)

#: What differs between two runs of one call because time passes and ids are new.
VOLATILE = frozenset(
    {
        "id",
        "sandbox_id",
        "vm_id",
        "changeset",
        "changeset_id",
        "reverts",
        "reverted_by",
        "supersedes",
        "superseded_by",
        "created_at",
        "expires_at",
        "decided_at",
        "applied_at",
        "finished_at",
        "baseline_at",
        "revoked_at",
        "time",
        "duration_ms",
        "mtime_ns",
        "digest",
        "key",
        "name",
        "workspace",
        "next_cursor",
        "sandboxes",
        "running",
        "artifact_id",
        "address",
        "node_store_id",
        "disk_free",
        "added_at",
        "seen_at",
        "forgotten_at",
        "marked",
    }
)
IDS = re.compile(r"\b(cs|sb)[0-9a-f]{16}\b")
COMMAND = "echo new > made; echo three >> notes.txt; rm src/main.py; echo out; echo err >&2; exit 3"


class Unheard:
    """Hears of requests and forgets."""

    def finished(self, request: Any) -> None:
        """Forget it."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """Three clients of one engine: in this process, over TCP's protocol, over the unix socket."""
    place = tmp_path_factory.mktemp("parity") / "state"
    place.mkdir(mode=0o700)
    token = "the administrator's"
    runtime = compose(config.load(state_directory=str(place)), persistent=True, admin_token=token)
    runtime.recover()
    workers = Workers(runtime.tasks(inventory_seconds=60))  # who uploads, for a pause that waits for it
    workers.start()
    tcp, unix = bind_tcp(Address("127.0.0.1", 0)), bind_unix(str(place / "socket"))
    serving = threading.Event()

    app = build(UserGate(runtime.platform), Unheard(), lambda: b"", exec_output_bytes=1 << 20)
    service = HttpService(app, Listeners(tcp, unix), serving.set)
    thread = threading.Thread(target=service.run)
    port = tcp.getsockname()[1]
    thread.start()
    assert serving.wait(30)
    actor = local_actor()
    yield {
        "embedded": EmbeddedClient(runtime.platform, actor),
        "socket": HttpClient(f"unix:{place / 'socket'}"),
        "tcp": HttpClient(f"http://127.0.0.1:{port}", token),
    }
    service.stop()
    thread.join(30)
    workers.stop()
    runtime.close()


def steady(value: Any) -> Any:
    """Return a reply without what two runs of one call may not have in common."""
    if isinstance(value, dict):
        return {
            IDS.sub("…", name): "…" if name in VOLATILE and item is not None else steady(item)
            for name, item in value.items()
        }
    if isinstance(value, str):
        return IDS.sub("…", value)
    return [steady(item) for item in value] if isinstance(value, list) else value


class Scenario:
    """Calls every operation once on a fresh project and keeps the replies."""

    def __init__(self, client: Client, place: Path, key_name: str) -> None:
        self.client = client
        self.place = place
        self.key_name = key_name
        self.replies: dict[str, Any] = {}

    def call(self, operation: str, body: msgspec.Struct | None = None, **options: Any) -> Any:
        """Call an operation that must succeed."""
        reply = self.client.call(operation, body=body, **options)
        self.replies[operation] = reply
        return reply

    def bytes(self, operation: str, **options: Any) -> None:
        """Call an operation that answers with bytes."""
        target = io.BytesIO()
        assert self.client.download(operation, target, **options) == len(target.getvalue())
        self.replies[operation] = target.getvalue()

    def run(self) -> None:
        """Call everything."""
        (self.place / "src").mkdir(parents=True)
        (self.place / "src" / "main.py").write_text("print(1)\n")
        (self.place / "notes.txt").write_text("one\ntwo\n")
        sandbox = self.call("sandbox.create", CreateSandbox(workspace=str(self.place)))["id"]
        self.call("sandbox.get", sandbox=sandbox)
        self.call("sandbox.metrics", query={"end": "2000-01-01T00:00:00Z"}, sandbox=sandbox)
        self.call("sandbox.list", query={"limit": 1})
        self.call("sandbox.exec", Exec(command="cat; echo out; exit 2", stdin="in\n"), sandbox=sandbox)
        self.call("sandbox.baseline", sandbox=sandbox)
        written = self.client.upload(
            "files.write", io.BytesIO(b"data"), query={"path": "/up", "mode": "0600"}, sandbox=sandbox
        )
        self.replies["files.write"] = written
        self.bytes("files.read", query={"path": "/up"}, sandbox=sandbox)
        self.call("files.list", query={"path": "/"}, sandbox=sandbox)
        self.call("sandbox.changes", sandbox=sandbox)
        self.call("sandbox.dry-run", DryRun(command=COMMAND), sandbox=sandbox)
        first = self.call("sandbox.speculate", Speculate(command=COMMAND), sandbox=sandbox)
        self.decide(sandbox, first)
        self.rest(sandbox)
        self.life()
        self.nodes()

    def decide(self, sandbox: str, first: dict[str, Any]) -> None:
        """Take one changeset through its life and others beside it."""
        names = {"sandbox": sandbox, "changeset": first["id"]}
        self.call("changeset.get", **names)
        self.call("changeset.diff", **names)
        self.bytes("changeset.file", **names, path="/notes.txt")
        self.bytes("changeset.export", **names, query={"format": "patch"})
        second = self.call("changeset.rerun", Decide(comment="again"), **names)
        self.call("changeset.compare", query={"changeset": [first["id"], second["id"]]}, sandbox=sandbox)
        self.call("changeset.list", query={"limit": 10}, sandbox=sandbox)
        names = {"sandbox": sandbox, "changeset": second["id"]}
        self.call("changeset.approve", Approve(digest=second["digest"], comment="good"), **names)
        self.call("changeset.apply", **names)
        self.call("changeset.wait", query={"timeout_seconds": 0}, **names)
        inverse = self.call("changeset.revert", **names)
        self.call("changeset.reject", Decide(comment="keep it"), sandbox=sandbox, changeset=inverse["id"])

    def life(self) -> None:
        """Pause, resume and copy a managed sandbox, and see to what that saved."""
        sandbox = self.call("sandbox.create", CreateSandbox(name=f"{self.key_name}-m"))["id"]
        self.call("sandbox.pause", Pause(durable=True), sandbox=sandbox)
        self.call("sandbox.resume", Resume(timeout_seconds=60), sandbox=sandbox)
        saved = self.call("sandbox.snapshot", TakeSnapshot(name=f"{self.key_name}-s"), sandbox=sandbox)
        forked = self.call("sandbox.fork", Fork(count=2), sandbox=sandbox)
        self.call("artifact.list", query={"sandbox": sandbox})
        self.call("artifact.get", artifact=saved["id"])
        self.call("artifact.verify", artifact=saved["id"])
        self.call("artifact.delete", artifact=saved["id"])
        self.call("artifact.collect")
        for made in (sandbox, *(copy["id"] for copy in forked["items"])):  # the next scenario begins with none
            self.client.call("sandbox.delete", sandbox=made)

    def nodes(self) -> None:
        """Register another node and give it up again."""
        place = self.place.parent / "node"
        place.mkdir(mode=0o700)
        other = compose(config.load(state_directory=str(place)), role="node", persistent=True)
        assert other.node is not None
        server = NodeServer(other.node.manager, "127.0.0.1:0", "secret")
        server.start()
        try:
            self.call("node.add", AddNode(name=self.key_name, address=f"127.0.0.1:{server.port}", token="secret"))
            self.call("node.get", node=self.key_name)
            self.call("node.list")
            self.replies["node.list"] = self.replies["node.list"]["items"][:1]
            self.call("node.forget", node=self.key_name)
        finally:
            server.stop(0)
            other.close()

    def rest(self, sandbox: str) -> None:
        """Call what belongs to no changeset."""
        self.call("audit.list", query={"sandbox_id": sandbox, "event": "changeset.applied"})
        self.call("sandbox.delete", sandbox=sandbox)
        made = self.call("keys.create", CreateKey(name=self.key_name, role="agent"))
        self.call("keys.revoke", key=made["id"])
        self.call("keys.list")
        self.replies["keys.list"] = self.replies["keys.list"]["items"][-1:]
        self.call("doctor")
        self.call("health")


def test_every_operation_gives_the_same_everywhere(clients: dict[str, Client], tmp_path: Path) -> None:
    found = {}
    for name in ("embedded", "socket"):
        scenario = Scenario(clients[name], tmp_path / name / "project", f"parity-{name}")
        scenario.run()
        found[name] = scenario.replies
    assert set(found["embedded"]) == set(OPERATIONS)
    for operation in OPERATIONS:
        ours, theirs = found["embedded"][operation], found["socket"][operation]
        assert type(ours) is type(theirs), operation
        if isinstance(ours, bytes):
            assert ours == theirs, operation
        else:
            assert steady(ours) == steady(theirs), operation
            assert _shape(ours) == _shape(theirs), operation


def _shape(value: Any) -> Any:
    """Return the keys in their order and the types of values."""
    if isinstance(value, dict):
        return [(IDS.sub("…", name), _shape(item)) for name, item in value.items()]
    return [_shape(item) for item in value] if isinstance(value, list) else type(value)


def test_one_changeset_reads_the_same_everywhere(clients: dict[str, Client], workspace: Path) -> None:
    made = clients["embedded"].call("sandbox.create", body=CreateSandbox(workspace=str(workspace)))
    odd = "printf x > \"$(printf 'n\\377ame')\"; printf '\\377\\000' ; ln -s \"$(printf 't\\376')\" link; rm notes.txt"
    one = clients["embedded"].call("sandbox.speculate", sandbox=made["id"], body=Speculate(command=odd))
    for client in clients.values():
        assert client.call("changeset.get", sandbox=made["id"], changeset=one["id"]) == one
    assert one["stdout_base64"] == "/wA="
    added = {entry["path"]: entry for entry in one["changes"]["added"]}
    assert added["/n\\xffame"]["path_base64"] == "L27/YW1l"
    assert added["/link"]["after"]["target_base64"] == "dP4="


Refused = tuple[str, dict[str, Any]]

REFUSED: list[Refused] = [
    ("sandbox.get", {"sandbox": "sbnone"}),
    ("changeset.get", {"sandbox": "sbnone", "changeset": "csnone"}),
    ("sandbox.create", {"body": CreateSandbox(name="bad name")}),
    ("sandbox.create", {"body": CreateSandbox(workspace="/nowhere/at/all")}),
    ("sandbox.exec", {"sandbox": "sbnone", "body": Exec(command="true", stream=True)}),
    ("sandbox.list", {"query": {"limit": 0}}),
    ("sandbox.list", {"query": {"limti": 3}}),
    ("sandbox.list", {"query": {"cursor": "not one"}}),
    ("audit.list", {"query": {"since": "yesterday"}}),
    ("keys.revoke", {"key": "nobody"}),
    ("keys.create", {"body": CreateKey(name="")}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_a_refusal_is_the_same_everywhere(clients: dict[str, Client], case: Refused) -> None:
    operation, options = case
    told = [_refusal(lambda client=client: client.call(operation, **options)) for client in clients.values()]  # type: ignore[misc]
    assert told[0] == told[1] == told[2]


def _refusal(call: Callable[[], Any]) -> tuple[str, str, dict[str, Any]]:
    with pytest.raises(FluxError) as caught:
        call()
    return caught.value.code.value, caught.value.message, caught.value.details
