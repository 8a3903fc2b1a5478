"""Artifacts that are missing or damaged, and object stores that are away: a typed error or a wait, nothing lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.errors import Code
from tests.cases.kit import Refused, Reply
from tests.cases.life import BEFORE, FILE, evicted, flipped, goes_on, kept
from tests.scenarios.daemons import Platform, platform, until
from tests.scenarios.inside import published
from tests.scenarios.stores import Bucket, Mood, buckets

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def shared(disk: Path) -> Iterator[Platform]:
    with platform(disk / "artifacts") as made:
        yield made


@pytest.fixture(scope="module")
def local(disk: Path) -> Iterator[Platform]:
    """A daemon without an object store."""
    with platform(disk / "local", more='[objects]\nurl = "none"') as made:
        yield made


def stays_paused(flux: Platform, paused: Reply, code: str, reason: str | None = None) -> None:
    """Assert that a connect fails with a typed error, and that the sandbox stays paused on its original artifact."""
    with pytest.raises(Refused) as refused:
        flux.rest.resume(paused["id"])
    assert refused.value.code == code, refused.value.details
    assert reason is None or refused.value.details["reason"] == reason
    again = flux.rest.get(paused["id"])
    assert (again["state"], again["artifact_id"]) == ("paused", paused["artifact_id"])
    row = flux.node_store.row(paused["id"])
    assert row is None or (row["state"], row["artifact_id"]) == ("suspended", paused["artifact_id"])


@pytest.mark.parametrize("missing", ["artifacts", "layers", "packs"])
def test_a_part_is_missing_in_the_store(shared: Platform, missing: str) -> None:
    before = set((shared.objects / missing).rglob("*"))
    paused = evicted(shared)
    gone = [path for path in set((shared.objects / missing).rglob("*")) - before if path.is_file()]
    assert gone
    away = shared.place / f"away-{missing}"
    away.mkdir()
    for path in gone:
        path.rename(away / path.name)
    with pytest.raises(Refused) as refused:
        shared.rest.resume(paused["id"])
    assert refused.value.code in ("unavailable", "internal", "not_found")
    again = shared.rest.get(paused["id"])
    assert (again["state"], again["artifact_id"]) == ("paused", paused["artifact_id"])
    for path in gone:
        (away / path.name).rename(path)
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


@pytest.mark.parametrize("part", ["artifacts", "layers", "packs"])
def test_a_byte_of_the_remote_copy_is_flipped(shared: Platform, part: str) -> None:
    before = set((shared.objects / part).rglob("*"))
    paused = evicted(shared)
    [file] = [path for path in set((shared.objects / part).rglob("*")) - before if path.is_file()]
    whole = file.read_bytes()
    flipped(file)
    stays_paused(shared, paused, "internal", "DataLoss")
    file.write_bytes(whole)
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


def layer_with(flux: Platform, content: bytes) -> Path:
    """Return the file of a local layer that has some content."""
    found = [path for path in (flux.node.state / "layers").glob(f"*/tree{FILE}") if path.read_bytes() == content]
    [file] = found
    return file


def test_a_byte_of_the_only_copy_is_flipped(local: Platform) -> None:
    content = b"only here\n"
    sandbox = local.rest.create()["id"]
    local.rest.write(sandbox, FILE, content)
    paused = local.rest.pause(sandbox)
    file = layer_with(local, content)
    times = times_of(file)
    flipped(file)
    stays_paused(local, paused, "internal", "DataLoss")
    with pytest.raises(Refused) as refused:
        local.rest.verify(paused["artifact_id"])
    assert (refused.value.code, refused.value.details["reason"]) == ("internal", "DataLoss")
    file.write_bytes(content)
    os.utime(file, ns=times)
    assert local.rest.resume(sandbox)["artifact_id"] == paused["artifact_id"]
    assert local.rest.read(sandbox, FILE) == content
    local.rest.delete(sandbox)


def test_a_damaged_local_copy_is_never_uploaded(shared: Platform) -> None:
    content = b"not to be uploaded\n"
    faults = shared.node.faults
    with faults.held("upload.taken", "*"):
        sandbox = shared.rest.create()["id"]
        shared.rest.write(sandbox, FILE, content)
        paused = shared.rest.pause(sandbox)
        until(lambda: faults.reached("upload.taken"), "the upload has begun")
        file = layer_with(shared, content)
        times = times_of(file)
        flipped(file)
    until(lambda: shared.node_store.jobs(sandbox)[0]["tries"] >= 2, "the upload was tried")
    assert "DataLoss" in str(shared.node_store.jobs(sandbox)) or shared.node_store.jobs(sandbox)[0]["error"]
    assert not shared.rest.get(sandbox)["artifact_durable"]
    assert paused["artifact_id"] not in published(shared.objects)
    file.write_bytes(content)
    os.utime(file, ns=times)
    assert shared.rest.resume(sandbox)["artifact_id"] == paused["artifact_id"]
    assert shared.rest.read(sandbox, FILE) == content
    shared.rest.delete(sandbox)


def times_of(file: Path) -> tuple[int, int]:
    """Return when a file was read and written last."""
    status = file.stat()
    return status.st_atime_ns, status.st_mtime_ns


def test_the_local_copy_is_missing_and_the_store_has_it(shared: Platform) -> None:
    paused = kept(shared, durable=True)
    (shared.node.state / "artifacts" / f"{paused['artifact_id']}.json").unlink()
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])


def test_the_only_copy_is_missing(local: Platform) -> None:
    paused = kept(local)
    manifest = local.node.state / "artifacts" / f"{paused['artifact_id']}.json"
    away = local.place / "away"
    shutil.move(manifest, away)
    with pytest.raises(Refused) as refused:
        local.rest.resume(paused["id"])
    assert refused.value.code in {code.value for code in Code} - {"ok"}
    assert local.rest.get(paused["id"])["state"] == "paused"
    shutil.move(away, manifest)
    goes_on(local, paused)
    local.rest.delete(paused["id"])


# The object store


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with buckets() as made:
        yield made


@pytest.fixture(scope="module")
def remote(disk: Path, bucket: Bucket) -> Iterator[Platform]:
    """A daemon whose object store speaks S3, behind a gate that the tests close."""
    with platform(disk / "remote", more=bucket.configuration, environment=bucket.environment) as made:
        yield made


@pytest.mark.parametrize("mood", [Mood.DOWN, Mood.REFUSING, Mood.SILENT])
def test_the_store_is_away_during_a_pause(remote: Platform, bucket: Bucket, mood: Mood) -> None:
    bucket.mood(mood)
    paused = kept(remote)
    assert (paused["state"], paused["artifact_durable"]) == ("paused", False)
    until(lambda: bucket.turned_away(mood), "the upload was tried")
    goes_on(remote, paused)
    again = remote.rest.pause(paused["id"])
    assert not again["artifact_durable"]
    bucket.mood(Mood.OPEN)
    until(lambda: remote.rest.get(paused["id"])["artifact_durable"], "it is uploaded in the end", 120)
    goes_on(remote, again)
    remote.rest.delete(paused["id"])


@pytest.mark.slow
@pytest.mark.parametrize("mood", [Mood.DOWN, Mood.REFUSING])
def test_the_store_is_away_when_only_it_has_the_artifact(remote: Platform, bucket: Bucket, mood: Mood) -> None:
    paused = evicted(remote)
    bucket.mood(mood)
    try:
        stays_paused(remote, paused, "unavailable")
    finally:
        bucket.mood(Mood.OPEN)
    goes_on(remote, paused)
    assert remote.rest.read(paused["id"], FILE) == BEFORE
    remote.rest.delete(paused["id"])


def test_the_stores_directory_is_no_directory(shared: Platform) -> None:
    away = shared.place / "objects-away"
    shared.objects.rename(away)
    shared.objects.write_text("not a directory")
    paused = kept(shared)
    until(lambda: shared.node_store.jobs(paused["id"])[0]["tries"] >= 1, "the upload was tried")
    assert not shared.rest.get(paused["id"])["artifact_durable"]
    shared.objects.unlink()
    away.rename(shared.objects)
    until(lambda: shared.rest.get(paused["id"])["artifact_durable"], "it is uploaded in the end")
    goes_on(shared, paused)
    shared.rest.delete(paused["id"])
