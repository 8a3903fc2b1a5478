"""Terminals."""

from __future__ import annotations

from typing import Any

import pytest
from e2b import CommandExitException, PtySize
from e2b.exceptions import NotFoundException
from flavours import Sdk, eventually

pytestmark = pytest.mark.everywhere


async def test_a_terminal_of_the_size_asked_for(box: Any, sdk: Sdk) -> None:
    terminal = await sdk.terminal(box, rows=31, cols=97, envs={"MARK": "m4rk"}, cwd="/tmp")
    await box.pty.send_stdin(terminal.pid, b"stty size; echo $MARK-$TERM-$LANG; pwd; tty\n")
    await terminal.output.said(b"31 97")
    await terminal.output.said(b"m4rk-xterm-256color-C.UTF-8")
    await terminal.output.said(b"/dev/pts/")
    await box.pty.resize(terminal.pid, PtySize(rows=40, cols=132))
    await box.pty.send_stdin(terminal.pid, b"stty size\n")
    await terminal.output.said(b"40 132")
    await box.pty.send_stdin(terminal.pid, b"exit 5\n")
    with pytest.raises(CommandExitException) as ended:
        await terminal.result()
    assert ended.value.exit_code == 5


async def test_an_interrupt_reaches_what_runs(box: Any, sdk: Sdk) -> None:
    terminal = await sdk.terminal(box)
    await box.pty.send_stdin(terminal.pid, b"echo begun-$((1+1)); sleep 1000\n")
    await terminal.output.said(b"begun-2")

    async def sleeps() -> bool:
        ended = await box.commands.run("pgrep -x sleep || true")
        return bool(ended.stdout.strip())

    await eventually(sleeps, "it sleeps")
    await box.pty.send_stdin(terminal.pid, b"\x03")
    await box.pty.send_stdin(terminal.pid, b"echo after-$((2+2))\n")
    await terminal.output.said(b"after-4")
    await box.pty.kill(terminal.pid)


async def test_killed(box: Any, sdk: Sdk) -> None:
    terminal = await sdk.terminal(box)
    assert terminal.pid in [process.pid for process in await box.commands.list()]
    assert await box.pty.kill(terminal.pid) is True
    with pytest.raises(CommandExitException) as ended:
        await terminal.result()
    assert ended.value.exit_code == -1
    assert await box.pty.kill(terminal.pid) is False
    late = await sdk.attach_terminal(box, terminal.pid)
    with pytest.raises(CommandExitException) as ended:
        await late.result()
    assert ended.value.exit_code == -1
    with pytest.raises(NotFoundException):
        await box.pty.resize(terminal.pid, PtySize(rows=1, cols=1))
    with pytest.raises(NotFoundException):
        await sdk.attach_terminal(box, 1 << 20)


async def test_a_second_listener(box: Any, sdk: Sdk) -> None:
    terminal = await sdk.terminal(box)
    again = await sdk.attach_terminal(box, terminal.pid)
    assert again.pid == terminal.pid
    await box.pty.send_stdin(terminal.pid, b"echo both-$((3+3))\n")
    await terminal.output.said(b"both-6")
    await again.output.said(b"both-6")
    await box.pty.send_stdin(terminal.pid, b"exit\n")
    assert (await terminal.result()).exit_code == 0
    assert (await again.result()).exit_code == 0


async def test_as_root(box: Any, sdk: Sdk) -> None:
    terminal = await sdk.terminal(box, user="root")
    await box.pty.send_stdin(terminal.pid, b"echo I-am-$(whoami)\n")
    await terminal.output.said(b"I-am-root")
    assert await box.pty.kill(terminal.pid) is True
