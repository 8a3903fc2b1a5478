"""The audit log: appended, durable, readable after any crash."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from flux.core.audit import AuditEvent, AuditFilter
from flux.core.errors import Code, FluxError
from flux.failpoints import Point, armed
from flux.store.stores import Stores
from flux.testing import crash
from flux.testing.clock import FakeClock
from flux.trees.files import SystemFiles

EVERYTHING = AuditFilter()


def line(number: int, **differently: object) -> AuditEvent:
    fields: dict[str, object] = {
        "id": f"ev{number}",
        "time": float(number),
        "event": "sandbox.exec",
        "actor": "ann",
        "role": "admin",
        **differently,
    }
    return AuditEvent(**fields)  # type: ignore[arg-type]


def reopen(stores: Stores, state: Path) -> Stores:
    stores.close()
    return Stores(str(state), FakeClock(), SystemFiles())


def ids(stores: Stores, filters: AuditFilter = EVERYTHING) -> list[str]:
    return [found.id for found in stores.audit.read(filters, 1000, 0)[0]]


def test_lines_come_back_in_order_and_only_their_owner_may_read_them(stores: Stores, state: Path) -> None:
    stores.audit.append(line(1, details={"command": "a\nb"}), line(2))
    assert stores.audit.read(EVERYTHING, 10, 0)[0] == [line(1, details={"command": "a\nb"}), line(2)]
    assert stat.S_IMODE(os.stat(state / "audit.log").st_mode) == 0o600


def test_pages_go_on_where_the_last_one_ended(stores: Stores) -> None:
    stores.audit.append(*(line(number) for number in range(7)))
    seen, cursor = [], 0
    while True:
        found, cursor = stores.audit.read(EVERYTHING, 3, cursor)
        if not found:
            break
        seen += [one.id for one in found]
    assert seen == [f"ev{number}" for number in range(7)]
    stores.audit.append(line(7))
    assert [one.id for one in stores.audit.read(EVERYTHING, 3, cursor)[0]] == ["ev7"]


def test_more_than_one_chunk_is_read_whole(stores: Stores) -> None:
    for number in range(40):
        stores.audit.append(line(number, details={"text": "x" * 20_000}))
    assert ids(stores) == [f"ev{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (AuditFilter(sandbox_id="sb1"), ["ev1", "ev2"]),
        (AuditFilter(changeset="cs1"), ["ev2"]),
        (AuditFilter(event="sandbox.exec"), ["ev1", "ev3"]),
        (AuditFilter(actor="bob"), ["ev3"]),
        (AuditFilter(since=2.0), ["ev2", "ev3"]),
        (AuditFilter(sandbox_id="sb1", since=2.0), ["ev2"]),
    ],
)
def test_filters_narrow(stores: Stores, filters: AuditFilter, expected: list[str]) -> None:
    stores.audit.append(
        line(1, sandbox_id="sb1"),
        line(2, sandbox_id="sb1", changeset="cs1", event="changeset.applied"),
        line(3, actor="bob"),
    )
    assert ids(stores, filters) == expected


@pytest.mark.parametrize("torn", [b'{"id":"ev2","ti', b"{", b"\xff\xfe", b'{"id":"ev2"}\n{"id'])
def test_a_line_that_a_power_loss_tore_is_passed_over_and_the_next_one_stands_alone(
    stores: Stores, state: Path, torn: bytes
) -> None:
    stores.audit.append(line(1))
    with (state / "audit.log").open("ab") as log:
        log.write(torn)
    again = reopen(stores, state)
    assert ids(again) == ["ev1"]
    again.audit.append(line(3))
    assert ids(again) == ["ev1", "ev3"]
    again.close()


def test_a_failed_append_counts_for_nothing_and_hinders_nothing(stores: Stores, state: Path) -> None:
    stores.audit.append(line(1))
    with armed(crash.Nth(1, crash.fail(errno.ENOSPC))), pytest.raises(FluxError) as caught:
        stores.audit.append(line(2))
    assert caught.value.code is Code.EXHAUSTED
    stores.audit.append(line(3))
    assert ids(stores) == ["ev1", "ev3"]
    again = reopen(stores, state)
    assert ids(again) == ["ev1", "ev3"]
    again.close()


def test_a_line_whose_sync_failed_may_be_repeated(stores: Stores) -> None:
    with armed(crash.Nth(2, crash.fail(errno.EIO))), pytest.raises(FluxError) as caught:
        stores.audit.append(line(1))
    assert caught.value.code is Code.UNAVAILABLE
    stores.audit.append(line(1))
    assert set(ids(stores)) == {"ev1"}


@pytest.mark.parametrize("number", [1, 2])
def test_a_crash_at_either_call_loses_no_earlier_line(stores: Stores, state: Path, number: int) -> None:
    stores.audit.append(line(1))
    ended = crash.in_child(lambda: stores.audit.append(line(2)), crash.Nth(number, crash.die))
    assert ended == -signal.SIGKILL
    again = reopen(stores, state)
    assert ids(again)[0] == "ev1"
    again.audit.append(line(3))
    assert ids(again)[-1] == "ev3"
    again.close()


def test_it_is_only_ever_appended_to(stores: Stores, state: Path) -> None:
    stores.audit.append(line(1))
    before = (state / "audit.log").read_bytes()
    again = reopen(stores, state)
    again.audit.append(line(2))
    assert (state / "audit.log").read_bytes().startswith(before)
    again.close()


def test_a_line_is_durable_before_the_append_returns(stores: Stores) -> None:
    reached: list[Point] = []
    with armed(reached.append):
        stores.audit.append(line(1))
    assert reached == [Point.AUDIT_APPEND, Point.AUDIT_APPEND]


def test_known_ids_are_told(stores: Stores) -> None:
    stores.audit.append(line(1), line(2))
    assert stores.audit.holds(["ev2", "ev9"]) == {"ev2"}


def test_a_cursor_between_lines_only(stores: Stores) -> None:
    stores.audit.append(line(1))
    end = stores.audit.end()
    assert stores.audit.check(0) == 0
    assert stores.audit.check(end) == end
    for wrong in (1, end + 1, -1):
        with pytest.raises(FluxError) as caught:
            stores.audit.check(wrong)
        assert caught.value.code is Code.INVALID


def test_who_waits_is_woken_by_the_next_line(stores: Stores) -> None:
    position = stores.audit.end()
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(stores.audit.wait(position, 60)))
    waiter.start()
    stores.audit.append(line(1))
    waiter.join(30)
    assert woken == [True]
    assert not stores.audit.wait(stores.audit.end(), 0)


def test_threads_do_not_mix_their_lines(stores: Stores) -> None:
    def add(first: int) -> None:
        for number in range(first, first + 25):
            stores.audit.append(line(number))

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(stores)) == sorted(
        f"ev{number}" for first in (0, 100, 200) for number in range(first, first + 25)
    )
