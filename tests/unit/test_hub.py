"""Who listens to a process: nothing is lost to those who stay, whoever leaves meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
from anyio.lowlevel import checkpoint

from flux.api.envd.hub import Hub, Piece

PIECES = [Piece("stdout", b"%d" % number) for number in range(20)]


async def _publish(hub: Hub) -> None:
    for piece in PIECES:
        await hub.publish(piece)
    hub.end()


def test_a_listener_that_leaves_while_another_is_waited_for_takes_nobody_along() -> None:
    async def run() -> list[Piece]:
        hub, leaving = Hub(), ExitStack()
        with hub.listen() as stays:
            leaving.enter_context(hub.listen())
            async with anyio.create_task_group() as group:
                group.start_soon(_publish, hub)
                for _ in range(10):  # the one that stays is now behind, and waited for
                    await checkpoint()
                leaving.close()
                return [piece async for piece in stays]

    assert anyio.run(run) == PIECES


def test_the_slowest_sets_the_pace() -> None:
    async def run() -> tuple[int, list[Piece]]:
        hub = Hub()
        done = anyio.Event()

        async def publish() -> None:
            await _publish(hub)
            done.set()

        with hub.listen() as slow, hub.listen() as quick:
            async with anyio.create_task_group() as group:
                group.start_soon(publish)
                heard = aiter(quick)
                ahead = 0
                with anyio.move_on_after(0.1):
                    while True:
                        await anext(heard)
                        ahead += 1
                assert not done.is_set()
                group.start_soon(_drain, heard)
                return ahead, [piece async for piece in slow]

    ahead, heard = anyio.run(run)
    assert ahead < len(PIECES)
    assert heard == PIECES


async def _drain(heard: object) -> None:
    async for _ in heard:  # type: ignore[attr-defined]  # an asynchronous iterator
        pass


def test_who_comes_after_the_end_hears_nothing() -> None:
    async def run() -> list[Piece]:
        hub = Hub()
        hub.end()
        with hub.listen() as late:
            return [piece async for piece in late]

    assert anyio.run(run) == []
