"""The tables: names, keys, and when a changeset is due."""

from __future__ import annotations

import pytest

from flux.core.access import Key, Role
from flux.core.audit import AuditEvent
from flux.core.changeset import State
from flux.core.errors import Code, FluxError
from flux.store import changeset_index, keys
from flux.store.changeset_index import Intent
from flux.store.database import Moment
from flux.store.stores import Stores
from flux.testing.clock import FakeClock
from tests.store import samples

LINE = AuditEvent(id="cs1:create", time=1.0, event="changeset.create", actor="a", role="admin")


def moment(clock: FakeClock) -> Moment:
    return Moment(wall=clock.wall(), boot_id=clock.boot_id(), boot_ns=clock.boot_ns())


def test_a_revoked_key_is_out_of_force_and_its_name_is_free(stores: Stores) -> None:
    key = Key(id="ky1", name="bot", role=Role.AGENT, created_at=5.0)
    with stores.database.transaction() as tx:
        keys.insert(tx, key, "hash1")
        assert keys.in_force(tx, "hash1") == key
        assert keys.in_force(tx, "hash2") is None
    with pytest.raises(FluxError) as caught, stores.database.transaction() as tx:
        keys.insert(tx, Key(id="ky2", name="bot", role=Role.AGENT, created_at=5.0), "hash2")
    assert caught.value.code is Code.ALREADY_EXISTS
    with stores.database.transaction() as tx:
        revoked = keys.revoke(tx, "bot")
        assert revoked is not None
        assert revoked.revoked_at == tx.now
        assert keys.in_force(tx, "hash1") is None
        assert keys.revoke(tx, "ky1") == revoked
        assert keys.revoke(tx, "bot") is None
        keys.insert(tx, Key(id="ky2", name="bot", role=Role.USER, created_at=6.0), "hash2")
        assert [one.id for one in keys.every(tx)] == ["ky1", "ky2"]


def test_an_intent_carries_its_line_until_it_is_settled(stores: Stores, clock: FakeClock) -> None:
    record = samples.changeset()
    with stores.database.transaction() as tx:
        changeset_index.insert(tx, record, owner="ky", line=LINE)
        (row,) = changeset_index.with_intent(tx)
        assert (row.intent, row.audit_line, row.owner) == (Intent.CREATE, LINE, "ky")
        assert changeset_index.page(tx, "sb1", limit=9, before=None) == []
        changeset_index.settle(tx, record, moment(clock))
        assert changeset_index.with_intent(tx) == []
        assert [one.id for one in changeset_index.page(tx, "sb1", limit=9, before=None)] == ["cs1"]


def due(stores: Stores, clock: FakeClock) -> list[str]:
    with stores.database.reading() as tx:
        return [row.id for row in changeset_index.due(tx, moment(clock))]


def test_within_a_boot_the_boot_clock_decides(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        changeset_index.insert(tx, samples.changeset(), owner=None, line=None)
    clock.set_wall(clock.wall() + 1_000_000)
    assert due(stores, clock) == []
    clock.set_wall(clock.wall() - 5_000_000)
    clock.advance(3599.999)
    assert due(stores, clock) == []
    clock.advance(0.001)
    assert due(stores, clock) == ["cs1"]


def test_across_boots_the_wall_clock_decides(stores: Stores, clock: FakeClock) -> None:
    with stores.database.transaction() as tx:
        changeset_index.insert(tx, samples.changeset(), owner=None, line=None)
    clock.reboot(down_seconds=3599)
    assert due(stores, clock) == []
    clock.advance(1)
    assert due(stores, clock) == ["cs1"]


@pytest.mark.parametrize("final", [State.APPLIED, State.REJECTED, State.EXPIRED, State.FAILED])
def test_finished_ones_are_never_due_and_are_over_after_their_retention(
    stores: Stores, clock: FakeClock, final: State
) -> None:
    record = samples.changeset(state=final, finished_at=clock.wall())
    with stores.database.transaction() as tx:
        changeset_index.insert(tx, record, owner=None, line=None)
        changeset_index.settle(tx, record, moment(clock))
    clock.set_wall(clock.wall() + 10_000_000)
    clock.advance(86_399)
    assert due(stores, clock) == []
    with stores.database.reading() as tx:
        assert changeset_index.over(tx, moment(clock), 86_400) == []
        clock.advance(1)
        assert [row.id for row in changeset_index.over(tx, moment(clock), 86_400)] == ["cs1"]


def test_retention_goes_on_by_the_wall_clock_after_a_reboot(stores: Stores, clock: FakeClock) -> None:
    record = samples.changeset(state=State.APPLIED, finished_at=clock.wall())
    with stores.database.transaction() as tx:
        changeset_index.insert(tx, record, owner=None, line=None)
        changeset_index.settle(tx, record, moment(clock))
    clock.reboot(down_seconds=86_399)
    with stores.database.reading() as tx:
        assert changeset_index.over(tx, moment(clock), 86_400) == []
        clock.advance(1)
        assert [row.id for row in changeset_index.over(tx, moment(clock), 86_400)] == ["cs1"]
