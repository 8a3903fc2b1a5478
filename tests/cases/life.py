"""What the cases of suspend, restore and delete share: a paused sandbox, and what must hold of it at the end."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flux.core.errors import Code, FluxError
from flux.core.node import Evict
from flux.core.receipts import DeleteReceipt
from flux.core.route import GENERATION_MAX, Execution
from tests.cases.kit import Refused, Reply
from tests.scenarios.daemons import Platform, until
from tests.scenarios.inside import left, processes

FILE = "/home/user/file"
BEFORE = b"before\n"
TYPED = {code.value for code in Code} - {"internal"}


def kept(flux: Platform, *, durable: bool = False, **options: Any) -> Reply:
    """Create a sandbox, write the file, pause it; return it as paused."""
    made = flux.rest.create(**options)
    flux.rest.write(made["id"], FILE, BEFORE)
    return flux.rest.pause(made["id"], durable=durable)


def goes_on(flux: Platform, paused: Reply) -> Reply:
    """Connect; it wakes from what it was paused on, with the file, and works."""
    woken = flux.rest.resume(paused["id"])
    assert (woken["state"], woken["woke_from"]) == ("running", "artifact")
    assert woken["artifact_id"] == paused["artifact_id"]
    assert flux.rest.read(paused["id"], FILE) == BEFORE
    assert flux.rest.run(paused["id"], f"cat {FILE}")["stdout"].encode() == BEFORE
    return woken


def execution_of(flux: Platform, sandbox: str) -> Execution:
    """Return the execution that holds the node's row."""
    row = flux.node_store.row(sandbox)
    assert row is not None
    return Execution(generation=row["generation"], pod_uid=row["pod_uid"])


def is_gone(flux: Platform, sandbox: str) -> None:
    """Assert that a sandbox was destroyed: nobody finds it, nothing is left, its receipt covers every generation."""
    with pytest.raises(Refused) as refused:
        flux.rest.get(sandbox)
    assert (refused.value.code, refused.value.status) == ("not_found", 404)
    until(lambda: flux.node_store.row(sandbox) is None, "the row is gone")
    receipt = flux.node_store.deletion(sandbox)
    assert isinstance(receipt, DeleteReceipt)
    assert (receipt.reason, receipt.covers_generation) == ("destroyed", GENERATION_MAX)
    until(lambda: left(flux.node.state, sandbox, pid=flux.node.process.pid) == {}, "nothing is left")


def outcome(call: Future[Any]) -> str:
    """Return the code of a typed refusal, or ``ok``; anything else fails the test."""
    error = call.exception(timeout=120)
    if error is None:
        return "ok"
    assert isinstance(error, Refused), error
    assert error.code in TYPED, error
    return error.code


def is_not_evicted(flux: Platform, sandbox: str) -> None:
    """Assert that a sandbox whose artifact is not durable stays on its node, however idle."""
    assert not flux.rest.get(sandbox)["artifact_durable"]
    execution = execution_of(flux, sandbox)
    with flux.node.later(7200), pytest.raises(FluxError) as refused:
        flux.client().evict(Evict(sandbox_id=sandbox, node_store_id=flux.node_store.id, execution=execution))
    assert refused.value.details["reason"] == "NotEvictable"
    assert flux.node_store.state_of(sandbox) == "suspended"


def evicted(flux: Platform) -> Reply:
    """Return a paused sandbox that only the object store has."""
    paused = kept(flux, durable=True)
    evict(flux, paused["id"], paused["artifact_id"])
    return paused


def evict(flux: Platform, sandbox: str, artifact: str) -> None:
    """Let a paused, uploaded sandbox leave the node's disk."""
    execution = execution_of(flux, sandbox)
    request = Evict(sandbox_id=sandbox, node_store_id=flux.node_store.id, execution=execution)

    def evicted() -> bool:
        with suppress(FluxError):  # the node may be about to evict it by itself
            flux.client().evict(request)
        return flux.node_store.row(sandbox) is None

    with flux.node.later(7200):
        until(evicted, "it is evicted")
    until(lambda: not (flux.node.state / "artifacts" / f"{artifact}.json").exists(), "no local copy is left")


def flipped(file: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def one_init(sandbox: str) -> None:
    """Assert that exactly one execution of a sandbox lives."""
    inits = [pid for pid in processes(sandbox) if Path(f"/proc/{pid}/cmdline").read_bytes() == b"flux-init\0"]
    assert len(inits) == 1, inits
