"""The manager's own driving: threads that wait for each other, foreign errors in Flux's terms."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from flux.core.errors import Code
from flux.core.node import Activated
from flux.failpoints import Point, armed
from tests.engine.node.kit import ID, Kit, failing

WAIT_SECONDS = 10.0


def test_a_joining_thread_is_woken_by_the_commit_it_waits_for(kit: Kit) -> None:
    prepared, joined = threading.Event(), threading.Event()

    def action(point: Point) -> None:
        if point is Point.ACTIVATE_PREPARED:
            prepared.set()
            assert joined.wait(WAIT_SECONDS)
        if point is Point.ACTIVATE_JOINED:
            joined.set()

    def second() -> Activated:
        assert prepared.wait(WAIT_SECONDS)
        return kit.activate(1)

    with armed(action), ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(kit.activate, 1), pool.submit(second)
        assert one.result(WAIT_SECONDS) == two.result(WAIT_SECONDS)
    assert [call for call, *_ in kit.machine.log].count("start") == 1


def test_a_kill_waits_for_the_thread_that_it_takes_the_row_from(kit: Kit) -> None:
    prepared, waiting = threading.Event(), threading.Event()

    def action(point: Point) -> None:
        if point is Point.ACTIVATE_PREPARED:
            prepared.set()
            assert waiting.wait(WAIT_SECONDS)
        if point is Point.TEARDOWN_WAITED:
            waiting.set()

    def kill() -> None:
        assert prepared.wait(WAIT_SECONDS)
        kit.destroy()

    with armed(action), ThreadPoolExecutor(2) as pool:
        starting, killing = pool.submit(kit.activate, 1), pool.submit(kill)
        killing.result(WAIT_SECONDS)
        with failing("RetiredGeneration", Code.FENCED):
            starting.result(WAIT_SECONDS)
    assert (kit.row(), kit.machine.trees, kit.machine.running) == (None, {}, set())


def test_a_foreign_error_is_of_unknown_outcome(kit: Kit) -> None:
    kit.activate(1)
    kit.machine.fail("remove", OSError(5, "I/O error"))
    with failing(None, Code.UNKNOWN_OUTCOME, "I/O error"):
        kit.destroy()
    kit.destroy()
    assert kit.row() is None
    assert kit.machine.generations_running(ID) == []
