"""The later cases of suspend, restore and delete, from 12 on; each test has its row's number."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.cases.kit import Refused
from tests.cases.life import (
    BEFORE,
    FILE,
    goes_on,
    is_gone,
    kept,
    outcome,
)
from tests.scenarios.daemons import Platform, until
from tests.scenarios.inside import processes

pytestmark = pytest.mark.root


# 12, 19


def test_12_ten_connects_after_a_restore_that_failed(shared: Platform) -> None:
    paused = kept(shared)
    shared.node.faults.arm(f"activate.prepare {paused['id']} 1 error")
    calls = [shared.later(shared.rest.resume, paused["id"]) for _ in range(10)]
    assert {outcome(call) for call in calls} == {"ok"}
    shared.node.faults.clear()
    assert len({call.result()["generation"] for call in calls}) == 1
    assert shared.rest.read(paused["id"], FILE) == BEFORE
    shared.rest.delete(paused["id"])


def test_12_ten_connects_one_after_the_other_and_most_restores_fail(shared: Platform) -> None:
    paused = kept(shared)
    shared.node.faults.arm(f"activate.prepare {paused['id']} 9 error:exhausted")
    outcomes = [outcome(shared.later(shared.rest.resume, paused["id"])) for _ in range(10)]
    shared.node.faults.clear()
    assert set(outcomes[:4]) == {"exhausted"}
    assert set(outcomes[5:]) == {"ok"}
    assert shared.rest.read(paused["id"], FILE) == BEFORE
    shared.rest.delete(paused["id"])


@pytest.mark.parametrize("point", ["activate.prepare", "activate.prepared", "activate.started"])
def test_19_a_failed_start_is_an_error_and_never_an_empty_sandbox(shared: Platform, point: str) -> None:
    paused = kept(shared)
    shared.node.faults.arm(f"{point} {paused['id']} 99 error:exhausted")
    assert outcome(shared.later(shared.rest.resume, paused["id"])) == "exhausted"
    shared.node.faults.clear()
    again = shared.rest.get(paused["id"])
    assert (again["state"], again["artifact_id"]) == ("paused", paused["artifact_id"])
    row = shared.node_store.row(paused["id"])
    assert row is not None
    assert (row["state"], row["generation"], row["artifact_id"]) == ("suspended", 1, paused["artifact_id"])
    assert processes(paused["id"]) == []
    with pytest.raises(Refused) as refused:
        shared.rest.read(paused["id"], FILE)
    assert (refused.value.code, "resume it first" in refused.value.message) == ("illegal_state", True)
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


def test_19_a_creation_that_cannot_start_leaves_nothing(shared: Platform) -> None:
    shared.node.faults.arm("activate.prepare * 99 error:exhausted")
    before = {item["id"] for item in shared.rest.send("GET", "/sandboxes")["items"]}
    with pytest.raises(Refused) as refused:
        shared.rest.create(name="never")
    shared.node.faults.clear()
    assert refused.value.code == "exhausted"
    assert {item["id"] for item in shared.rest.send("GET", "/sandboxes")["items"]} == before
    made = shared.rest.create(name="never")
    assert shared.rest.run(made["id"], "ls /home/user")["stdout"] == ""
    shared.rest.delete(made["id"])


# 13, 17


def test_13_every_acknowledged_line_is_there_after_a_pause_at_the_time_out(shared: Platform) -> None:
    acknowledged = lines_until_paused(shared, shared.rest.create(ttl_seconds=2, on_timeout="pause")["id"])
    assert acknowledged > 10


WRITER = """/usr/bin/python3 -c "
import os
lines = os.open('/home/user/lines', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
while True:
    os.write(lines, b'%d\\n' % number)
    os.fsync(lines)
    os.write(1, b'%d\\n' % number)
    number += 1
"
"""


def lines_until_paused(flux: Platform, sandbox: str) -> int:
    """Let a process write, sync and tell lines until the sandbox is paused; every one that it told is there after."""
    body = {"command": WRITER, "stream": True}
    with flux.rest.http.stream("POST", f"/v1/sandboxes/{sandbox}/exec", json=body) as reply:
        assert reply.status_code == 200
        told = told_by(reply)
    until(lambda: flux.rest.get(sandbox)["state"] == "paused", "it is paused at its time-out")
    woken = flux.rest.resume(sandbox, timeout_seconds=600)
    assert woken["woke_from"] == "artifact"
    lines = flux.rest.read(sandbox, "/home/user/lines").decode().split("\n")
    assert lines[: len(told)] == [str(number) for number in range(len(told))]
    flux.rest.delete(sandbox)
    return len(told)


def told_by(reply: httpx.Response) -> list[int]:
    """Return the numbers that a streamed command wrote before it was ended."""
    output = b""
    with suppress(httpx.HTTPError):
        for line in reply.iter_lines():
            event = json.loads(line)
            if event["event"] == "stdout":
                output += base64.b64decode(event["data"])
    return [int(number) for number in output.split(b"\n")[:-1]]


def test_17_a_connect_never_shortens_what_is_left(shared: Platform) -> None:
    made = shared.rest.create(ttl_seconds=3600)
    assert shared.rest.resume(made["id"], timeout_seconds=60)["expires_at"] == made["expires_at"]
    longer = shared.rest.resume(made["id"], timeout_seconds=7200)
    assert longer["expires_at"] > made["expires_at"]
    assert shared.rest.resume(made["id"])["expires_at"] == longer["expires_at"]
    shared.rest.delete(made["id"])


# 14


def test_14_two_generations_within_a_moment_and_the_clock_an_hour_back(alone: Platform) -> None:
    paused = kept(alone)
    with alone.node.later(-3600):
        woken = goes_on(alone, paused)
        assert woken["generation"] == 2
        again = alone.rest.pause(paused["id"])
        assert again["artifact_id"] != paused["artifact_id"]
        assert alone.rest.resume(paused["id"])["generation"] == 3
        alone.rest.pause(paused["id"], durable=True)
    alone.node.kill()
    with alone.node.later(-7200):
        alone.restart()
        assert alone.rest.resume(paused["id"])["generation"] == 4
        assert alone.rest.read(paused["id"], FILE) == BEFORE
    ids = [row["id"] for row in alone.node_store.artifacts(paused["id"])]
    assert len(ids) == len(set(ids))
    alone.rest.delete(paused["id"])


# 15


@pytest.mark.parametrize("point", ["suspend.begun", "suspend.quiesced", "layer.publish", "suspend.captured"])
def test_15_a_capture_fails_before_it_is_named(shared: Platform, point: str) -> None:
    sandbox = shared.rest.create()["id"]
    shared.rest.write(sandbox, FILE, BEFORE)
    shared.node.faults.arm(f"{point} {sandbox} 1 error")
    with pytest.raises(Refused) as refused:
        shared.rest.pause(sandbox)
    shared.node.faults.clear()
    assert refused.value.code in ("internal", "unavailable")
    after = shared.rest.get(sandbox)
    assert (after["state"], after["generation"], after["artifact_id"]) == ("running", 1, None)
    assert shared.rest.run(sandbox, f"cat {FILE}")["stdout"].encode() == BEFORE
    assert shared.node_store.artifacts(sandbox) == []
    goes_on(shared, shared.rest.pause(sandbox))
    shared.rest.delete(sandbox)
    is_gone(shared, sandbox)


@pytest.mark.parametrize(
    "point", ["suspend.quiesced", *(pytest.param(p, marks=pytest.mark.slow) for p in ("layer.publish", "layer.write"))]
)
def test_15_the_node_dies_in_a_capture(alone: Platform, point: str) -> None:
    sandbox = alone.rest.create()["id"]
    alone.rest.write(sandbox, FILE, BEFORE)
    alone.node.faults.arm(f"{point} {sandbox} 1 kill")
    with pytest.raises(httpx.HTTPError):
        alone.rest.pause(sandbox)
    assert alone.node.ended() == -9
    alone.node.faults.clear()
    alone.restart()
    until(lambda: alone.rest.get(sandbox)["state"] in ("running", "paused"), "it is at rest")
    alone.rest.resume(sandbox)
    assert alone.rest.read(sandbox, FILE) == BEFORE
    alone.rest.delete(sandbox)
    is_gone(alone, sandbox)


# 16


def test_16_64_mib_through_a_command_after_a_restore(shared: Platform) -> None:
    paused = kept(shared)
    shared.rest.resume(paused["id"])
    content = b"".join(hashlib.sha256(b"%d" % number).digest() * 32768 for number in range(64))
    assert len(content) == 64 << 20
    there = shared.command.feed(content, "sandbox", "exec", paused["id"], "--", "cat")
    assert hashlib.sha256(there).hexdigest() == hashlib.sha256(content).hexdigest()
    shared.rest.delete(paused["id"])


# 18


def test_18_created_twice_with_one_key(shared: Platform) -> None:
    calls = [shared.later(shared.rest.create, idempotency_key="once", metadata={"a": "b"}) for _ in range(4)]
    made = {call.result()["id"] for call in calls}
    assert len(made) == 1
    with pytest.raises(Refused) as refused:
        shared.rest.create(idempotency_key="once", metadata={"a": "c"})
    assert (refused.value.code, refused.value.status) == ("already_exists", 409)
    [sandbox] = made
    shared.rest.pause(sandbox)
    assert shared.rest.create(idempotency_key="once", metadata={"a": "b"})["id"] == sandbox
    shared.rest.delete(sandbox)


# 20

VERBS: dict[str, Callable[[Platform, str], Any]] = {
    "pause": lambda flux, sandbox: flux.rest.pause(sandbox),
    "snapshot": lambda flux, sandbox: flux.rest.snapshot(sandbox),
    "kill": lambda flux, sandbox: flux.rest.delete(sandbox),
}


@pytest.mark.parametrize("order", list(itertools.permutations(VERBS)), ids="-".join)
def test_20_pause_snapshot_and_kill_at_the_same_time(shared: Platform, order: tuple[str, ...]) -> None:
    sandbox = shared.rest.create()["id"]
    shared.rest.write(sandbox, FILE, BEFORE)
    calls = {}
    for verb in order:
        calls[verb] = shared.later(VERBS[verb], shared, sandbox)
        threading.Event().wait(0.002)  # so that they mostly arrive in this order, and not always
    found = {verb: outcome(call) for verb, call in calls.items()}
    assert found["kill"] == "ok"
    assert found["pause"] in ("ok", "not_found", "unavailable", "illegal_state", "fenced", "conflict")
    assert found["snapshot"] in ("ok", "not_found", "unavailable", "illegal_state", "fenced", "conflict")
    is_gone(shared, sandbox)


@pytest.mark.parametrize("first", ["pause", "snapshot"])
def test_20_pause_and_snapshot_at_the_same_time(shared: Platform, first: str) -> None:
    sandbox = shared.rest.create()["id"]
    shared.rest.write(sandbox, FILE, BEFORE)
    other = "snapshot" if first == "pause" else "pause"
    calls = {verb: shared.later(VERBS[verb], shared, sandbox) for verb in (first, other)}
    assert outcome(calls["pause"]) == "ok"
    assert outcome(calls["snapshot"]) in ("ok", "illegal_state", "conflict", "unavailable")
    paused = shared.rest.get(sandbox)
    if outcome(calls["snapshot"]) == "ok":
        taken = calls["snapshot"].result()
        assert taken["current"] == (paused["artifact_id"] == taken["id"])  # of a paused one: what it rests on
    goes_on(shared, paused)
    shared.rest.delete(sandbox)
