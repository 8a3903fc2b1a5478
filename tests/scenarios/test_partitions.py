"""One control plane and two nodes on loopback: nodes that are away, come back, and are given up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cases.kit import Refused, Reply
from tests.scenarios.daemons import Fluxd, Platform, platform, until
from tests.scenarios.inside import NodeStore, groups, processes, published

pytestmark = [pytest.mark.root, pytest.mark.slow]

FILE, BEFORE = "/home/user/file", b"before\n"
#: Short enough that a test can wait for it to be over, in seconds.
WAKE = "wake_timeout_seconds = 4.0"
AWAY = ("unavailable", "unknown_outcome")


@pytest.fixture(scope="module")
def flux(disk: Path) -> Iterator[Platform]:
    with platform(disk / "two", split=True, control=WAKE) as made:
        made.add_node("two")
        yield made


@contextmanager
def silent(node: Fluxd) -> Iterator[None]:
    """Let a node take connections, and answer nothing."""
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.process.pid, signal.SIGCONT)


@contextmanager
def dead(node: Fluxd) -> Iterator[None]:
    """Kill a node; it listens at the same address when it is back."""
    node.kill()
    try:
        yield
    finally:
        node.start()


def created(flux: Platform) -> tuple[str, str, str]:
    """Return the id of a sandbox with a file, the node that it is on, and the other one."""
    made = flux.rest.create()
    flux.rest.write(made["id"], FILE, BEFORE)
    here = made["node"]
    return made["id"], here, "two" if here == "one" else "one"


def store(flux: Platform, node: str) -> NodeStore:
    """Return what a node remembers."""
    return NodeStore(flux.nodes[node].state)


def is_refused(flux: Platform, sandbox: str) -> Refused:
    """Connect in vain."""
    with pytest.raises(Refused) as refused:
        flux.rest.resume(sandbox)
    return refused.value


def works(flux: Platform, woken: Reply, node: str) -> None:
    """Assert that a sandbox runs on a node, with its file."""
    assert (woken["state"], woken["node"]) == ("running", node)
    assert flux.rest.read(woken["id"], FILE) == BEFORE
    assert flux.rest.run(woken["id"], f"cat {FILE}")["stdout"].encode() == BEFORE


@pytest.mark.parametrize("away", [dead, silent])
def test_what_is_only_on_a_lost_node_waits_for_it(flux: Platform, away: type) -> None:
    sandbox, here, _ = created(flux)
    with flux.nodes[here].faults.held("upload.taken", "*"):
        paused = flux.rest.pause(sandbox)
        assert not paused["artifact_durable"]
        with away(flux.nodes[here]):
            refused = is_refused(flux, sandbox)
            assert refused.code in AWAY
            assert flux.rest.get(sandbox)["artifact_id"] == paused["artifact_id"]
        until(lambda: flux.rest.get(sandbox)["state"] in ("paused", "running", "waking"), "it answers")
        works(flux, until(lambda: resumed(flux, sandbox), "the node is back"), here)
    flux.rest.delete(sandbox)


def resumed(flux: Platform, sandbox: str) -> Reply | None:
    """Connect, or return nothing while that is refused for the moment."""
    try:
        return flux.rest.resume(sandbox)
    except Refused as refused:
        assert refused.code in AWAY, refused
        return None


def test_what_is_uploaded_wakes_on_another_node(flux: Platform) -> None:
    sandbox, here, there = created(flux)
    paused = flux.rest.pause(sandbox, durable=True)
    with dead(flux.nodes[here]):
        woken = until(lambda: resumed(flux, sandbox), "it wakes elsewhere")
        works(flux, woken, there)
        assert woken["artifact_id"] == paused["artifact_id"]
        assert published(flux.objects).count(paused["artifact_id"]) == 1
    # What the node that is back has is the current artifact: it stays, and nothing runs from it.
    assert store(flux, here).state_of(sandbox) == "suspended"
    assert len(processes(sandbox)) == 1
    works(flux, flux.rest.resume(sandbox), there)
    flux.rest.delete(sandbox)
    until(lambda: [store(flux, node).row(sandbox) for node in (here, there)] == [None, None], "no row is left")
    until(lambda: groups(sandbox) == [], "nothing is left")


@pytest.mark.parametrize("away", [dead, silent])
def test_a_running_sandbox_is_not_moved_while_its_node_is_away(flux: Platform, away: type) -> None:
    sandbox, here, there = created(flux)
    flux.rest.pause(sandbox, durable=True)
    flux.rest.resume(sandbox)
    with away(flux.nodes[here]):
        if away is dead:  # one that is only silent is waited for, as a long command is
            with pytest.raises(Refused) as refused:
                flux.rest.run(sandbox, "true")
            assert refused.value.code in AWAY
        assert store(flux, there).row(sandbox) is None
    until(lambda: flux.rest.get(sandbox)["state"] in ("running", "paused"), "it is at rest")
    works(flux, until(lambda: resumed(flux, sandbox), "the node is back"), here)
    assert store(flux, there).row(sandbox) is None
    flux.rest.delete(sandbox)


def test_a_node_that_was_given_up_ends_what_it_still_runs_and_uploads_nothing(disk: Path) -> None:
    with platform(disk / "given-up", split=True, control=WAKE) as flux:
        flux.add_node("two")
        sandbox, here, there = created(flux)
        first = flux.rest.pause(sandbox, durable=True)
        flux.rest.resume(sandbox)
        flux.rest.write(sandbox, "/home/user/lost", b"not saved\n")
        with silent(flux.nodes[here]):
            flux.rest.send("DELETE", f"/nodes/{here}")
            woken = until(lambda: resumed(flux, sandbox), "it wakes elsewhere")
            works(flux, woken, there)
            assert (woken["artifact_id"], woken["woke_from"]) == (first["artifact_id"], "last_artifact_after_stop")
        assert [item["artifact_id"] for item in [flux.rest.get(sandbox)]] == [first["artifact_id"]]
        assert len(store(flux, here).artifacts(sandbox)) == 1
        assert published(flux.objects) == [first["artifact_id"]]
        works(flux, flux.rest.resume(sandbox), there)
        flux.rest.delete(sandbox)


def test_a_sandbox_deleted_while_its_node_is_away_is_gone_when_it_is_back(flux: Platform) -> None:
    sandbox, here, _ = created(flux)
    flux.rest.pause(sandbox, durable=True)
    flux.rest.resume(sandbox)
    with dead(flux.nodes[here]):
        flux.rest.delete(sandbox)
        with pytest.raises(Refused) as refused:
            flux.rest.get(sandbox)
        assert refused.value.code == "not_found"
        assert flux.control_store.row(sandbox)["state"] in ("killing", "killed")
    until(lambda: store(flux, here).row(sandbox) is None, "the node that is back destroys it")
    receipt = store(flux, here).deletion(sandbox)
    assert receipt is not None and receipt.reason == "destroyed"
    until(lambda: processes(sandbox) == [] and groups(sandbox) == [], "nothing is left")
