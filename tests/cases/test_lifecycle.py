"""The cases of suspend, restore and delete on real processes, up to 11; each test has its row's number."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from flux.api.rest.routed import headers_of
from flux.core.access import SYSTEM
from flux.core.control import Located
from flux.core.errors import Code, FluxError
from flux.core.fence import Teardown
from flux.core.node import Suspend, TearDown
from tests.cases.kit import Refused, Reply
from tests.cases.life import (
    BEFORE,
    FILE,
    evict,
    evicted,
    execution_of,
    flipped,
    goes_on,
    is_gone,
    is_not_evicted,
    kept,
    one_init,
    outcome,
)
from tests.scenarios.daemons import Platform, platform, until
from tests.scenarios.flux import Caller
from tests.scenarios.inside import is_unchanged, left, processes, published

pytestmark = pytest.mark.root

# 1


@pytest.mark.parametrize("point", ["activate.prepare", "activate.prepared", "activate.started", "activate.committed"])
def test_1_deleted_while_a_connect_is_under_way(shared: Platform, point: str) -> None:
    paused = kept(shared)
    faults = shared.node.faults
    reached = faults.reached(point)
    with faults.held(point, paused["id"]):
        waking = shared.later(shared.rest.resume, paused["id"])
        until(lambda: faults.reached(point) > reached, "the connect is under way")
        deleting = shared.later(shared.rest.delete, paused["id"])
        until(lambda: shared.control_store.row(paused["id"])["state"] in ("killing", "killed"), "the tombstone stands")
    assert outcome(deleting) == "ok"
    assert outcome(waking) in ("not_found", "unavailable")
    is_gone(shared, paused["id"])


# 2


@pytest.mark.parametrize("failing", [1, 2])
def test_2_writes_fail_after_the_execution_started(shared: Platform, failing: int) -> None:
    paused = kept(shared)
    faults = shared.node.faults
    reached = faults.reached("activate.started")
    faults.arm(f"activate.started {paused['id']} 1 hold")
    waking = shared.later(shared.rest.resume, paused["id"])
    until(lambda: faults.reached("activate.started") > reached, "the execution has started")
    commits = faults.reached("database.commit")
    faults.replace(f"database.commit {paused['id']} {failing} error:unavailable")
    woken = waking.result()
    faults.clear()
    assert faults.reached("database.commit") == commits + failing
    assert (woken["state"], woken["woke_from"], woken["artifact_id"]) == ("running", "artifact", paused["artifact_id"])
    is_as_it_was(shared, paused)


@pytest.mark.parametrize("point", ["activate.started", "activate.committed"])
def test_2_the_node_fails_beside_its_writes(shared: Platform, point: str) -> None:
    paused = kept(shared)
    shared.node.faults.arm(f"{point} {paused['id']} 1 error")
    goes_on(shared, paused)
    shared.node.faults.clear()
    is_as_it_was(shared, paused)


def is_as_it_was(flux: Platform, paused: Reply) -> None:
    """Assert that a sandbox woke from its original artifact, and that there is no other."""
    assert flux.rest.read(paused["id"], FILE) == BEFORE
    assert [row["id"] for row in flux.node_store.artifacts(paused["id"])] == [paused["artifact_id"]]
    one_init(paused["id"])
    flux.rest.delete(paused["id"])
    is_gone(flux, paused["id"])


# 3, 4, 7: what comes late


def test_3_the_artifact_of_an_older_generation_is_not_committed(shared: Platform) -> None:
    first = shared.rest.create()["id"]
    shared.rest.write(first, FILE, BEFORE)
    late = execution_of(shared, first)
    paused = shared.rest.pause(first)
    goes_on(shared, paused)
    before, known = shared.node_store.everything(first), shared.control_store.row(first)
    node = shared.client()
    with pytest.raises(FluxError) as refused:
        node.suspend(Suspend(sandbox_id=first, node_store_id=shared.node_store.id, execution=late))
    assert (refused.value.code, refused.value.details["reason"]) == (Code.FENCED, "StaleGeneration")
    assert is_unchanged(before, shared.node_store.everything(first))
    assert shared.control_store.row(first) == known
    assert shared.rest.get(first)["artifact_id"] == paused["artifact_id"]
    shared.rest.delete(first)


def test_7_a_late_clean_up_does_not_touch_the_newer_generation(shared: Platform) -> None:
    sandbox = shared.rest.create()["id"]
    shared.rest.write(sandbox, FILE, BEFORE)
    late = execution_of(shared, sandbox)
    paused = shared.rest.pause(sandbox)
    goes_on(shared, paused)
    shared.rest.run(sandbox, "sleep 1000 >/dev/null 2>&1 &")
    living = processes(sandbox)
    before = shared.node_store.everything(sandbox)
    torn = shared.client().tear_down(TearDown(sandbox_id=sandbox, node_store_id=shared.node_store.id, execution=late))
    assert (torn.outcome, torn.artifact, torn.new_job) == (Teardown.NEWER, None, False)
    after = shared.node_store.everything(sandbox)
    before["fence"]["retired"] = 1
    assert is_unchanged(before, after)
    assert sorted(processes(sandbox)) == sorted(living)
    assert shared.rest.read(sandbox, FILE) == BEFORE
    shared.rest.delete(sandbox)


def test_4_the_old_generations_credential_opens_nothing(disk: Path) -> None:
    with platform(disk / "credentials", split=True) as flux:
        sandbox = flux.rest.create()["id"]
        flux.rest.write(sandbox, FILE, BEFORE)
        old = flux.control_store.row(sandbox)
        assert inside(old).content == BEFORE
        goes_on(flux, flux.rest.pause(sandbox))
        new = flux.control_store.row(sandbox)
        assert (new["generation"], new["credential"] != old["credential"]) == (2, True)
        assert inside(new).content == BEFORE
        address = new["address"]
        for late in (
            {**old, "address": address},
            {**new, "credential": old["credential"]},
            {**new, "generation": old["generation"]},
        ):
            refused = inside(late)
            assert refused.status_code in (401, 403, 409), refused.text
            assert refused.json()["code"] in ("unauthenticated", "fenced", "denied")
        assert flux.rest.read(sandbox, FILE) == BEFORE
        flux.rest.delete(sandbox)


def inside(row: Reply) -> httpx.Response:
    """Read the file from a node's data plane, past the control plane."""
    located = Located(
        sandbox_id=row["id"],
        node=row["node"],
        generation=row["generation"],
        pod_uid=row["pod_uid"],
        credential=row["credential"],
        address=row["address"],
        local=False,
    )
    return httpx.get(
        f"{row['address']}/v1/sandboxes/{row['id']}.{row['generation']}/files",
        params={"path": FILE},
        headers=headers_of(located, SYSTEM),
    )


# 5

UPLOAD = ["upload.taken", "upload.intent", "upload.part", "upload.manifest", "upload.confirmed", "upload.committed"]


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point == "upload.part" else pytest.mark.slow) for point in UPLOAD]
)
def test_5_the_uploader_is_killed(alone: Platform, point: str) -> None:
    alone.node.faults.arm(f"{point} * 1 kill")
    made = alone.rest.create()
    alone.rest.write(made["id"], FILE, BEFORE)
    with suppress(httpx.HTTPError):  # the answer may be lost with the daemon
        alone.rest.pause(made["id"])
    assert alone.node.ended() == -9
    alone.node.faults.replace("upload.taken * 1 hold")
    assert (len(published(alone.objects)) == 1) == (
        point in ("upload.manifest", "upload.confirmed", "upload.committed")
    )
    alone.restart()
    [artifact] = alone.node_store.artifacts(made["id"])
    if point != "upload.committed":
        until(lambda: alone.node.faults.reached("upload.taken"), "the upload is tried again")
        is_not_evicted(alone, made["id"])
    assert (alone.node.state / "artifacts" / f"{artifact['id']}.json").exists()
    alone.node.faults.clear()
    until(lambda: alone.rest.get(made["id"])["artifact_durable"], "it is durable in the end")
    assert published(alone.objects) == [artifact["id"]]
    assert alone.rest.verify(artifact["id"])["durable"]


# 6


def test_6_restored_from_the_remote_copy_alone(shared: Platform) -> None:
    paused = evicted(shared)
    assert left(shared.node.state, paused["id"]) == {}
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


def test_6_a_flipped_byte_is_an_error_and_the_original_stays(shared: Platform) -> None:
    packs = set((shared.objects / "packs").glob("*"))
    paused = evicted(shared)
    [pack] = set((shared.objects / "packs").glob("*")) - packs
    whole = pack.read_bytes()
    flipped(pack)
    with pytest.raises(Refused) as refused:
        shared.rest.resume(paused["id"])
    assert (refused.value.code, refused.value.details["reason"]) == ("internal", "DataLoss")
    again = shared.rest.get(paused["id"])
    assert (again["state"], again["artifact_id"]) == ("paused", paused["artifact_id"])
    with pytest.raises(Refused) as refused:
        shared.rest.verify(paused["artifact_id"])
    assert refused.value.details["reason"] == "DataLoss"
    pack.write_bytes(whole)
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


# 8, 11


def cycles(caller: Caller, number: int) -> None:
    """Pause and connect at once, many times; each cycle writes a file, and all are there at the end."""
    sandbox = caller.create()["id"]
    for cycle in range(number):
        caller.write(sandbox, f"/home/user/file{cycle}", f"{cycle}\n".encode())
        paused = caller.pause(sandbox)
        assert (paused["id"], paused["state"]) == (sandbox, "paused")
        assert processes(sandbox) == []
        woken = caller.resume(sandbox)
        assert (woken["id"], woken["state"], woken["generation"]) == (sandbox, "running", cycle + 2)
    wanted = "".join(f"{cycle}\n" for cycle in range(number))
    listed = caller.run(sandbox, f"cd /home/user; for i in $(seq 0 {number - 1}); do cat file$i; done; ls | wc -l")
    assert (listed["exit_code"], listed["stdout"]) == (0, f"{wanted}{number}\n")
    caller.delete(sandbox)


@pytest.mark.slow
def test_8_two_hundred_times(alone: Platform) -> None:
    sandbox = alone.rest.create()["id"]
    alone.rest.write(sandbox, FILE, BEFORE)
    for cycle in range(200):
        assert alone.rest.pause(sandbox)["id"] == sandbox
        woken = alone.rest.resume(sandbox)
        log = alone.control.log.read_text()
        spent = log.count('"event": "rolled back"')  # a start that failed spends its generation, and says why
        assert (woken["id"], woken["generation"]) == (sandbox, cycle + 2 + spent), log[-3000:]
        assert alone.rest.run(sandbox, f"cat {FILE}; echo {cycle} >>/home/user/lines")["stdout"].encode() == BEFORE
        one_init(sandbox)
    lines = alone.rest.read(sandbox, "/home/user/lines").decode().split()
    assert lines == [str(cycle) for cycle in range(200)]
    alone.rest.delete(sandbox)
    is_gone(alone, sandbox)


def test_8_the_connect_comes_while_it_is_being_paused(shared: Platform) -> None:
    sandbox = shared.rest.create()["id"]
    shared.rest.write(sandbox, FILE, BEFORE)
    faults = shared.node.faults
    for number in range(4):
        reached = faults.reached("suspend.captured")
        with faults.held("suspend.captured", sandbox):
            pausing = shared.later(shared.rest.pause, sandbox)
            until(lambda: faults.reached("suspend.captured") > reached, "it is being paused")  # noqa: B023
            waking = [shared.later(shared.rest.resume, sandbox) for _ in range(3)]
        assert pausing.result()["id"] == sandbox
        assert {call.result()["generation"] for call in waking} == {number + 2}
        shared.rest.run(sandbox, "true")
        one_init(sandbox)
        assert shared.rest.read(sandbox, FILE) == BEFORE
    shared.rest.delete(sandbox)


def test_11_twenty_cycles_each_with_a_file(shared: Platform) -> None:
    cycles(shared.rest, 20)


def test_11_some_cycles_without_a_daemon(place: Path) -> None:
    from tests.scenarios.flux import Command

    cycles(Command(place / "state"), 3)


# 9


@pytest.mark.parametrize("damage", ["flipped", "no-manifest", "no-layer", "garbage"])
def test_9_deleted_with_a_corrupt_artifact(shared: Platform, damage: str) -> None:
    paused = kept(shared)
    manifest = shared.node.state / "artifacts" / f"{paused['artifact_id']}.json"
    if damage == "flipped":
        flipped(manifest)
    elif damage == "garbage":
        manifest.write_bytes(b"\xff\x00{")
    elif damage == "no-manifest":
        manifest.unlink()
    else:
        for layer in layers_of(shared, paused["id"]):
            shutil.rmtree(layer)
    shared.rest.delete(paused["id"])
    is_gone(shared, paused["id"])
    until(lambda: not manifest.exists(), "the artifact is gone from the node's disk")


def layers_of(flux: Platform, sandbox: str) -> list[Path]:
    """Return the local layers that hold the sandbox's file."""
    found = []
    for layer in (flux.node.state / "layers").iterdir():
        file = layer / "tree" / FILE.lstrip("/")
        if file.exists() and sandbox in (layer / "layer.json").read_text() + sandbox:
            found.append(layer)
    assert found
    return found


# 10


def test_10_collecting_leaves_what_a_successor_restores_from(shared: Platform) -> None:
    paused = evicted(shared)
    faults = shared.node.faults
    reached = faults.reached("activate.prepare")
    with faults.held("activate.prepare", paused["id"]):
        waking = shared.later(shared.rest.resume, paused["id"])
        until(lambda: faults.reached("activate.prepare") > reached, "the successor restores")
        for _ in range(3):
            shared.rest.collect()
        assert paused["artifact_id"] in published(shared.objects)
    assert waking.result()["artifact_id"] == paused["artifact_id"]
    assert shared.rest.read(paused["id"], FILE) == BEFORE
    shared.rest.delete(paused["id"])


def test_10_collecting_leaves_what_a_child_refers_to(shared: Platform) -> None:
    paused = kept(shared, durable=True)
    [child] = shared.rest.fork(paused["id"])
    shared.rest.write(child["id"], "/home/user/own", b"own\n")
    resting = shared.rest.pause(child["id"], durable=True)
    shared.rest.delete(paused["id"])
    evict(shared, child["id"], resting["artifact_id"])
    for _ in range(3):
        shared.rest.collect()
    goes_on(shared, resting)
    assert shared.rest.read(child["id"], "/home/user/own") == b"own\n"
    shared.rest.delete(child["id"])
    is_gone(shared, child["id"])


def test_10_in_the_end_everything_is_collected(alone: Platform) -> None:
    paused = kept(alone, durable=True)
    assert published(alone.objects) == [paused["artifact_id"]]
    alone.rest.delete(paused["id"])
    until(lambda: alone.rest.collect() and published(alone.objects) == [], "the store's copy is gone")
    until(lambda: alone.rest.collect()["deleted"] == 0, "nothing is left to delete")
    assert [path for path in (alone.objects / "packs").rglob("*") if path.is_file()] == []
    until(lambda: list((alone.node.state / "layers").iterdir()) == [], "no local layer is left")
