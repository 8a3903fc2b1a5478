"""Fences and endings that outlive rows; artifacts, pins and upload jobs; the identity of a node's store."""

from __future__ import annotations

import pytest

from flux.core.errors import Code, FluxError
from flux.core.fence import Ended, EndedAs, Fence
from flux.core.lifecycle import NodeState
from flux.core.receipts import DeleteReceipt
from flux.core.route import GENERATION_MAX, Route
from flux.store import artifact_rows, endings, fences, node_identity, sandboxes, upload_jobs
from flux.store.artifact_rows import ArtifactRow
from flux.store.database import Moment
from flux.store.stores import Stores
from flux.testing.clock import SECOND_NS, FakeClock
from tests.store import samples

NOTHING = Fence()


def route(generation: int) -> Route:
    return Route(generation=generation, attempt_id=f"a{generation}", pod_uid=f"p{generation}")


def artifact(artifact_id: str, **differently: object) -> ArtifactRow:
    values: dict[str, object] = {
        "id": artifact_id,
        "sandbox_id": "sb1",
        "generation": 1,
        "digest": f"digest of {artifact_id}",
        "kind": "suspend",
        "state": "local",
        "created_at": 1.0,
    }
    return ArtifactRow(**(values | differently))  # type: ignore[arg-type]


def moment(clock: FakeClock) -> Moment:
    return Moment(wall=clock.wall(), boot_id=clock.boot_id(), boot_ns=clock.boot_ns())


def test_claims_and_retirements_never_go_down(stores: Stores) -> None:
    with stores.database.transaction() as tx:
        assert fences.find(tx, "sb1") == NOTHING
        fences.claim(tx, "sb1", route(5), "d5")
        fences.claim(tx, "sb1", route(3), "d3")
        expected = Fence(claimed=5, claimed_attempt="a5", claimed_pod_uid="p5", claimed_digest="d5")
        assert fences.find(tx, "sb1") == expected
        fences.retire(tx, "sb1", 4)
        fences.retire(tx, "sb1", 2)
        assert fences.find(tx, "sb1").retired == 4
        fences.claim(tx, "sb1", route(6), "d6")
        found = fences.find(tx, "sb1")
        assert (found.claimed, found.claimed_attempt, found.claimed_pod_uid, found.claimed_digest, found.retired) == (
            6, "a6", "p6", "d6", 4,
        )  # fmt: skip


def test_a_sandbox_that_was_never_here_can_be_retired(stores: Stores) -> None:
    with stores.database.transaction() as tx:
        fences.retire(tx, "sb1", 7)
        assert fences.find(tx, "sb1") == Fence(retired=7)
        assert not fences.is_retired_for_ever(tx, "sb1")
        fences.retire_for_ever(tx, "sb1")
        assert fences.is_retired_for_ever(tx, "sb1")
        assert fences.find(tx, "sb1").retired == GENERATION_MAX
        assert not fences.is_retired_for_ever(tx, "sb2")


def test_a_delete_receipt_retires_what_it_covers_and_remembers_the_version(stores: Stores) -> None:
    receipt = DeleteReceipt(sandbox_id="sb1", covers_generation=3, reason="evicted", at=1.0)
    with stores.database.transaction() as tx:
        assert fences.delete_receipt(tx, "sb1") is None
        assert fences.next_version(tx, "sb1") == 1
        fences.set_delete_receipt(tx, receipt, 9)
        assert fences.delete_receipt(tx, "sb1") == receipt
        assert fences.find(tx, "sb1").retired == 3
        assert fences.next_version(tx, "sb1") == 10
        fences.set_delete_receipt(tx, receipt, 0)
        assert fences.next_version(tx, "sb1") == 10


def test_a_generation_ends_once_and_is_remembered_until_confirmed(stores: Stores) -> None:
    first = Ended(generation=1, ended_as=EndedAs.SUSPENDED, artifact_id="x", artifact_digest="digest of x")
    third = Ended(generation=3, ended_as=EndedAs.ROLLED_BACK)
    with stores.database.transaction() as tx:
        artifact_rows.insert(tx, artifact("x"))
        fences.retire(tx, "sb1", 3)
        endings.record(tx, "sb1", third)
        endings.record(tx, "sb1", first)
        endings.record(tx, "sb1", Ended(generation=1, ended_as=EndedAs.DESTROYED))
        assert fences.find(tx, "sb1").ended == (first, third)
        assert endings.unconfirmed(tx) == ["sb1"]
        assert endings.confirm(tx, "sb2", 9) == 0
        assert endings.confirm(tx, "sb1", 2) == 1
        assert endings.of_sandbox(tx, "sb1") == (third,)
        assert endings.confirm(tx, "sb1", 3) == 1
        assert endings.unconfirmed(tx) == []


def test_an_artifact_is_known_once_and_durable_for_good(stores: Stores) -> None:
    with stores.database.transaction() as tx:
        assert artifact_rows.insert(tx, artifact("x", parent="w", size=3, stored=2))
        assert not artifact_rows.insert(tx, artifact("x", state="durable"))
        assert artifact_rows.find(tx, "x") == artifact("x", parent="w", size=3, stored=2)
        assert artifact_rows.find(tx, "y") is None
        assert artifact_rows.reference(tx, None) is None
        artifact_rows.set_state(tx, "x", "uploading")
        assert not artifact_rows.is_durable(tx, "x")
        artifact_rows.set_state(tx, "x", "durable")
        artifact_rows.set_state(tx, "x", "uploading")
        assert artifact_rows.is_durable(tx, "x")
        found = artifact_rows.reference(tx, "x")
        assert found is not None
        assert (found.id, found.digest, found.durable) == ("x", "digest of x", True)
        assert [row.id for row in artifact_rows.every(tx)] == ["x"]


def test_nothing_that_is_referred_to_is_collected(stores: Stores, clock: FakeClock) -> None:
    """I7: rows, in-flight restores, names, jobs, pins and unconfirmed endings; and the chain below what is local."""
    with stores.database.transaction() as tx:
        for name in ("row", "restoring", "named", "job", "pin", "ended", "free", "old", "older", "backed"):
            artifact_rows.insert(tx, artifact(name))
        artifact_rows.insert(tx, artifact("next", parent="old"))
        artifact_rows.insert(tx, artifact("saved", state="durable", parent="backed"))
        tx.execute("UPDATE artifacts SET parent = 'older' WHERE id = 'old'")
        assert artifact_rows.needed(tx) == set()
        sandboxes.insert(tx, samples.row(artifact_id="row", restoring="restoring", named="named"), samples.sandbox())
        sandboxes.insert(tx, samples.row("sb2", artifact_id="next"), samples.sandbox("sb2"))
        sandboxes.insert(tx, samples.row("sb3", artifact_id="saved"), samples.sandbox("sb3"))
        upload_jobs.queue(tx, "job", moment(clock))
        artifact_rows.pin(tx, "snapshot", "pin")
        fences.retire(tx, "sb1", 1)
        endings.record(tx, "sb1", Ended(generation=1, ended_as=EndedAs.SUSPENDED, artifact_id="ended"))
        assert artifact_rows.needed(tx) == {
            "row", "restoring", "named", "job", "pin", "ended", "next", "old", "older", "saved",
        }  # fmt: skip


def test_what_another_machine_can_have_is_not_needed_for_a_pin_or_an_ending(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        for name in ("pin", "ended", "job"):
            artifact_rows.insert(tx, artifact(name, state="durable"))
        artifact_rows.insert(tx, artifact("destroyed"))
        artifact_rows.pin(tx, "snapshot", "pin")
        upload_jobs.queue(tx, "job", moment(clock))
        upload_jobs.finish(tx, "job", 3)
        fences.retire(tx, "sb1", 1)
        endings.record(tx, "sb1", Ended(generation=1, ended_as=EndedAs.SUSPENDED, artifact_id="ended"))
        fences.retire_for_ever(tx, "sb2")
        endings.record(tx, "sb2", Ended(generation=1, ended_as=EndedAs.SUSPENDED, artifact_id="destroyed"))
        assert artifact_rows.needed(tx) == set()


def test_a_pin_and_another_ones_restore_hold_an_artifact(stores: Stores) -> None:
    with stores.database.transaction() as tx:
        artifact_rows.insert(tx, artifact("x"))
        assert not artifact_rows.is_pinned(tx, "x", but_for="sb1")
        sandboxes.insert(tx, samples.row("sb1", restoring="x"), samples.sandbox("sb1"))
        assert not artifact_rows.is_pinned(tx, "x", but_for="sb1")
        assert artifact_rows.is_pinned(tx, "x", but_for="sb2")
        artifact_rows.pin(tx, "snapshot", "x")
        assert artifact_rows.is_pinned(tx, "x", but_for="sb1")
        pinned = artifact_rows.pinned_by(tx, "snapshot")
        assert pinned is not None
        assert pinned.id == "x"
        assert artifact_rows.pinned_by(tx, "other") is None
        artifact_rows.set_state(tx, "x", "durable")
        assert not artifact_rows.is_pinned(tx, "x", but_for="sb1")


def test_a_forgotten_artifact_takes_its_job_and_pins_along(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        artifact_rows.insert(tx, artifact("x"))
        artifact_rows.pin(tx, "snapshot", "x")
        upload_jobs.queue(tx, "x", moment(clock))
        artifact_rows.delete(tx, "x")
        assert artifact_rows.every(tx) == []
        assert artifact_rows.pinned_by(tx, "snapshot") is None
        assert upload_jobs.count(tx) == 0


def test_one_job_for_each_artifact_backing_off_by_the_boot_clock(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        artifact_rows.insert(tx, artifact("x"))
        assert upload_jobs.queue(tx, "x", moment(clock))
        assert not upload_jobs.queue(tx, "x", moment(clock))
        upload_jobs.begin(tx, "x")
        upload_jobs.put_off(tx, "x", "down", moment(clock), 5 * SECOND_NS)
        assert upload_jobs.due(tx, moment(clock)) is None
        assert upload_jobs.error_of(tx, "x") == "down"
        found = upload_jobs.find(tx, "x")
        assert found is not None
        assert (found.tries, found.error) == (1, "down")
        clock.set_wall(clock.wall() + 1_000_000)
        assert upload_jobs.due(tx, moment(clock)) is None
        clock.advance(5)
        assert upload_jobs.due(tx, moment(clock)) == found
        upload_jobs.put_off(tx, "x", "down", moment(clock), 500 * SECOND_NS)
        clock.reboot()
        assert upload_jobs.due(tx, moment(clock)) == found


def test_the_job_that_is_due_for_longest_is_first_and_a_finished_one_is_over(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        for name in ("x", "y"):
            artifact_rows.insert(tx, artifact(name))
            upload_jobs.queue(tx, name, moment(clock))
            clock.advance(1)
        first = upload_jobs.due(tx, moment(clock))
        assert first is not None
        assert first.artifact_id == "x"
        upload_jobs.finish(tx, "x", 10)
        second = upload_jobs.due(tx, moment(clock))
        assert second is not None
        assert second.artifact_id == "y"
        assert not upload_jobs.is_open(tx, "x")
        assert upload_jobs.is_open(tx, "y")
        assert upload_jobs.find(tx, "x") is None
        assert upload_jobs.error_of(tx, "x") is None
        assert not upload_jobs.queue(tx, "x", moment(clock))
        assert upload_jobs.count(tx) == 2


def test_destroying_drops_the_uploads_of_what_nobody_else_starts_from(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        artifact_rows.insert(tx, artifact("own"))
        artifact_rows.insert(tx, artifact("shot", kind="snapshot"))
        artifact_rows.insert(tx, artifact("forked"))
        artifact_rows.insert(tx, artifact("other", sandbox_id="sb2"))
        for name in ("own", "shot", "forked", "other"):
            upload_jobs.queue(tx, name, moment(clock))
        sandboxes.insert(tx, samples.row("sb2", artifact_id="forked"), samples.sandbox("sb2"))
        assert upload_jobs.cancel_of_sandbox(tx, "sb1") == 1
        assert upload_jobs.find(tx, "own") is None
        assert upload_jobs.count(tx) == 3


def test_jobs_are_queued_for_what_has_none(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        for name, state in (("x", "local"), ("y", "durable"), ("z", "local"), ("b", "local")):
            artifact_rows.insert(tx, artifact(name, state=state))
        sandboxes.insert(tx, samples.row(artifact_id="x"), samples.sandbox())
        sandboxes.insert(tx, samples.row("sb2", artifact_id="y"), samples.sandbox("sb2"))
        sandboxes.insert(tx, samples.row("sb3", artifact_id="b", bound=True), samples.sandbox("sb3"))
        assert upload_jobs.queue_missing(tx, moment(clock)) == 1
        assert upload_jobs.is_open(tx, "x")
        assert upload_jobs.queue_missing(tx, moment(clock)) == 0


def test_a_store_keeps_its_identity_and_has_one_owner(stores: Stores) -> None:
    first = node_identity.Identity(node_store_id="n1", secret=b"s1")
    second = node_identity.Identity(node_store_id="n2", secret=b"s2")
    with stores.database.transaction() as tx:
        assert node_identity.find(tx) is None
        assert node_identity.adopt(tx, "me", first) == first
        node_identity.check(tx, "me")
        assert node_identity.adopt(tx, "you", second) == first
        node_identity.check(tx, "you")
        assert node_identity.find(tx) == first
        with pytest.raises(FluxError) as caught:
            node_identity.check(tx, "me")
    assert caught.value.code is Code.FENCED
    assert caught.value.details == {"reason": "OtherManager"}


def test_a_row_in_deletion_says_why(stores: Stores) -> None:
    with stores.database.transaction() as tx:
        row = samples.row(state=NodeState.DELETING, intent="stale")
        sandboxes.insert(tx, row, samples.sandbox())
        assert sandboxes.row(tx, "sb1") == row
