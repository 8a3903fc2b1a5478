"""State that cannot be used: a full disk, a database that is locked or damaged, two managers on one store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cases.disks import missing, mounted
from tests.cases.kit import Refused
from tests.cases.life import BEFORE, FILE, evicted, goes_on, kept
from tests.scenarios.daemons import Platform, platform, until

pytestmark = pytest.mark.root

RESERVE = "[sandbox.procbox]\ndisk_reserve_mib = 0"
#: Longer than a transaction waits for another process, in seconds.
BUSY = 30.0


@pytest.fixture
def alone(place: Path) -> Iterator[Platform]:
    with platform(place / "alone") as made:
        yield made


@contextmanager
def filled(disk: Path, leaving: int = 0) -> Iterator[None]:
    """Leave a disk with so many free bytes."""
    ballast = disk / "ballast"
    status = os.statvfs(disk)
    free = status.f_bavail * status.f_frsize
    with ballast.open("wb") as file:
        block = b"\xa5" * (1 << 16)
        try:
            while free > leaving:
                free -= file.write(block[: max(1, free - leaving)])
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            pass
    try:
        yield
    finally:
        ballast.unlink()


@pytest.fixture
def small() -> Iterator[Path]:
    """A small disk of its own for the state directory."""
    if (why := missing("ext4")) is not None:
        pytest.skip(f"no small disk here: {why}")
    with mounted("ext4", "192M") as disk:
        yield disk


def test_a_full_disk_refuses_and_loses_nothing(small: Path, place: Path) -> None:
    with platform(small / "flux", more=RESERVE, objects=place / "objects") as flux:
        first = evicted(flux)
        second = kept(flux)
        third = flux.rest.create()["id"]
        flux.rest.write(third, FILE, BEFORE)
        with filled(small):
            codes = {refusal(flux.later(flux.rest.resume, sandbox["id"])) for sandbox in (first, second)}
            codes.add(refusal(flux.later(flux.rest.pause, third)))
            assert codes <= {None, "exhausted", "unavailable"}
            assert refusal(flux.later(flux.rest.resume, first["id"])) in ("exhausted", "unavailable")
        until(lambda: flux.rest.get(third)["state"] in ("running", "paused"), "it is at rest")
        for sandbox in (first, second):
            assert flux.rest.get(sandbox["id"])["artifact_id"] == sandbox["artifact_id"]
            flux.rest.pause(sandbox["id"])
            flux.rest.resume(sandbox["id"])
            assert flux.rest.read(sandbox["id"], FILE) == BEFORE
        goes_on(flux, flux.rest.pause(third))
        for sandbox_id in (first["id"], second["id"], third):
            flux.rest.delete(sandbox_id)


def refusal(call: Future[Any]) -> str | None:
    """Return the code of a typed refusal, ``None`` if it was none."""
    error = call.exception(timeout=120)
    assert error is None or isinstance(error, Refused), error
    return None if error is None else error.code


@pytest.mark.parametrize("store", ["flux.db", "control.db"])
@pytest.mark.slow
def test_a_locked_database_is_waited_for(alone: Platform, store: str) -> None:
    paused = kept(alone, durable=True)
    connection = sqlite3.connect(alone.node.state / store, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    waking = alone.later(alone.rest.resume, paused["id"])
    error = waking.exception(timeout=120)
    connection.execute("ROLLBACK")
    connection.close()
    assert error is None or (isinstance(error, Refused) and error.code in ("unavailable", "unknown_outcome")), error
    goes_on(alone, paused) if error is not None else None
    assert alone.rest.read(paused["id"], FILE) == BEFORE


def test_a_database_that_is_locked_for_a_moment(alone: Platform) -> None:
    paused = kept(alone)
    connection = sqlite3.connect(alone.node.state / "flux.db", isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    waking = alone.later(alone.rest.resume, paused["id"])
    assert not waking.done()
    connection.execute("ROLLBACK")
    connection.close()
    assert waking.result()["artifact_id"] == paused["artifact_id"]
    assert alone.rest.read(paused["id"], FILE) == BEFORE


@pytest.mark.parametrize("store", ["flux.db", "control.db"])
def test_a_damaged_database_is_left_as_it_is(alone: Platform, store: str) -> None:
    paused = kept(alone, durable=True)
    alone.node.stop()
    file = alone.node.state / store
    whole = file.read_bytes()
    damaged = whole[:16] + b"\x55" * 84 + whole[100:]
    file.write_bytes(damaged)
    code, said = start_fails(alone)
    assert code != 0
    assert "damaged" in said and "Traceback" not in said, said
    assert file.read_bytes() == damaged
    file.write_bytes(whole)
    alone.restart()
    goes_on(alone, paused)


def start_fails(flux: Platform) -> tuple[int, str]:
    """Start another daemon on the state directory, which ends by itself; return its exit code and what it said."""
    command = [sys.executable, "-m", "flux.app.fluxd", "--state-dir", str(flux.node.state), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=flux.node.environment, timeout=60, check=False
    )
    return done.returncode, done.stderr.decode()


def test_two_managers_on_one_store(alone: Platform) -> None:
    paused = kept(alone)
    before = alone.node_store.all("SELECT * FROM node_identity")
    code, said = start_fails(alone)
    assert code == 69
    assert f"process {alone.node.process.pid}" in said
    assert alone.node_store.all("SELECT * FROM node_identity") == before
    goes_on(alone, paused)


@pytest.mark.slow
def test_a_manager_that_was_replaced_writes_nothing(alone: Platform) -> None:
    paused = kept(alone)
    connection = sqlite3.connect(alone.node.state / "flux.db", isolation_level=None, timeout=30)
    [(owner,)] = connection.execute("SELECT owner FROM node_identity").fetchall()
    connection.execute("UPDATE node_identity SET owner = 'another'")
    before = alone.node_store.everything(paused["id"])
    with pytest.raises(Refused) as refused:
        alone.rest.resume(paused["id"])
    assert refused.value.code in ("unavailable", "fenced", "unknown_outcome"), refused.value
    assert alone.node_store.everything(paused["id"]) == before
    connection.execute("UPDATE node_identity SET owner = ?", (owner,))
    connection.close()
    until(lambda: alone.rest.get(paused["id"])["state"] == "paused", "it is at rest", 120)
    goes_on(alone, paused)
