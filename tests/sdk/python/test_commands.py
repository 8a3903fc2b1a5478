"""Commands: output as it comes, exit codes, input, time-outs, and what goes on when nobody listens."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from e2b import CommandExitException
from e2b.exceptions import NotFoundException, TimeoutException
from flavours import Sdk, eventually

MIB = 1 << 20


@pytest.mark.everywhere
async def test_output_and_exit_code(box: Any) -> None:
    ended = await box.commands.run("echo out; echo err >&2")
    assert (ended.stdout, ended.stderr, ended.exit_code, ended.error) == ("out\n", "err\n", 0, None)
    with pytest.raises(CommandExitException) as failed:
        await box.commands.run("echo out; echo err >&2; exit 3")
    assert (failed.value.stdout, failed.value.stderr, failed.value.exit_code) == ("out\n", "err\n", 3)
    with pytest.raises(CommandExitException) as failed:
        await box.commands.run("no-such-command-here")
    assert failed.value.exit_code == 127 and "no-such-command-here" in failed.value.stderr


@pytest.mark.everywhere
async def test_callbacks_come_while_it_runs(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "echo first; echo warn >&2; read line; echo got $line", stdin=True)
    await running.output.said("first\n")
    await running.output.said("warn\n")
    assert not running.ended.done()
    await box.commands.send_stdin(running.pid, "more\n")
    ended = await running.result()
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "first\ngot more\n", "warn\n")
    assert (running.output.stdout, running.output.stderr) == ("first\ngot more\n", "warn\n")


async def test_callbacks_of_a_foreground_command(box: Any) -> None:
    out: list[str] = []
    errors: list[str] = []
    ended = await box.commands.run(
        "echo a; echo b >&2; echo ü", on_stdout=out.append, on_stderr=errors.append, retain_output=False
    )
    assert ("".join(out), "".join(errors)) == ("a\nü\n", "b\n")
    assert (ended.stdout, ended.stderr, ended.exit_code) == (None, None, 0)


@pytest.mark.everywhere
async def test_environment_place_and_user(box: Any, sdk: Sdk) -> None:
    assert (await box.commands.run("whoami; pwd; echo $HOME")).stdout == "user\n/home/user\n/home/user\n"
    assert (await box.commands.run("whoami; pwd; echo $HOME", user="root")).stdout == "root\n/root\n/root\n"
    assert (await box.commands.run("whoami", user="user")).stdout == "user\n"
    assert (await box.commands.run("pwd", cwd="/usr/lib")).stdout == "/usr/lib\n"
    await box.files.make_dir("below")
    assert (await box.commands.run("pwd", cwd="below")).stdout == "/home/user/below\n"
    told = {"ONE": "1 2", "TWO": 'quote " and $ONE', "EMPTY": ""}
    ended = await box.commands.run('printf "%s|" "$ONE" "$TWO" "$EMPTY" "${UNSET-unset}"', envs=told)
    assert ended.stdout == '1 2|quote " and $ONE||unset|'
    other = await sdk.create(timeout=300, envs={"ONE": "sandbox", "KEPT": "yes"})
    assert (await other.commands.run('echo "$ONE $KEPT"', envs={"ONE": "command"})).stdout == "command yes\n"
    await other.kill()


@pytest.mark.everywhere
async def test_background_listed_connected_and_killed(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "echo ready; sleep 1000", cwd="/tmp", envs={"MARK": "1"})
    await running.output.said("ready\n")
    [listed] = await box.commands.list()
    assert (listed.pid, listed.cmd, listed.args) == (running.pid, "/bin/bash", ["-l", "-c", "echo ready; sleep 1000"])
    assert (listed.cwd, listed.envs, listed.tag) == ("/tmp", {"MARK": "1"}, None)
    second = await sdk.attach(box, running.pid)
    assert second.pid == running.pid
    assert await box.commands.kill(running.pid) is True
    for listener in (running, second):
        with pytest.raises(CommandExitException) as killed:
            await listener.result()
        assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert await box.commands.kill(running.pid) is False
    assert await box.commands.list() == []
    with pytest.raises(NotFoundException):
        await box.commands.connect(1 << 20)
    with pytest.raises(NotFoundException):
        await box.commands.send_stdin(1 << 20, "x")


async def test_a_handle_kills_and_disconnects(box: Any) -> None:
    handle = await box.commands.run("sleep 1000", background=True)
    assert await handle.kill() is True
    with pytest.raises(CommandExitException):
        await handle.wait()
    assert await handle.kill() is False
    left = await box.commands.run("for i in 1 2 3; do read line; echo $line >>lines; done", background=True, stdin=True)
    await left.disconnect()
    for line in ("a", "b", "c"):
        await box.commands.send_stdin(left.pid, f"{line}\n")

    async def written() -> bool:
        ended = await box.commands.run("cat lines 2>/dev/null || true")
        return bool(ended.stdout == "a\nb\nc\n")

    await eventually(written, "it went on")


async def test_input_is_sent_and_closed(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "cat; echo end", stdin=True)
    await running.handle.send_stdin("one ")
    await box.commands.send_stdin(running.pid, b"t\xc3\xbc\n")
    await running.output.said("one tü\n")
    await sdk.stream_in(box, running.pid, [b"three ", b"four\n"])
    await running.output.said("three four\n")
    await running.handle.close_stdin()
    assert (await running.result()).stdout == "one tü\nthree four\nend\n"


async def test_without_input_a_read_ends_at_once(box: Any) -> None:
    assert (await box.commands.run("cat; echo done", timeout=20)).stdout == "done\n"


@pytest.mark.everywhere
async def test_a_time_out_ends_it(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "echo ready; sleep 1000", timeout=2)
    with pytest.raises(TimeoutException):
        await running.result()
    assert running.output.stdout == "ready\n"
    await eventually(lambda: nothing_listed(box), "it is killed")


async def nothing_listed(box: Any) -> bool:
    """Tell whether nothing runs in a sandbox."""
    return bool(await box.commands.list() == [])


async def test_without_a_time_out_it_may_run(box: Any, sdk: Sdk) -> None:
    running = await sdk.start(box, "read line; echo $line", stdin=True, timeout=0)
    await box.commands.send_stdin(running.pid, "late\n")
    assert (await running.result()).stdout == "late\n"


@pytest.mark.everywhere
async def test_row_16_64_mib_and_exit_right_after_the_last_byte(box: Any) -> None:
    found = hashlib.sha256()
    size = 0

    def count(text: str) -> None:
        nonlocal size
        size += len(text)
        found.update(text.encode())

    ended = await box.commands.run(
        f"yes 0123456789abcde | head -c {64 * MIB}; exit 0", on_stdout=count, retain_output=False, timeout=300
    )
    assert (ended.exit_code, size) == (0, 64 * MIB)
    assert found.hexdigest() == hashlib.sha256(b"0123456789abcde\n" * (4 * MIB)).hexdigest()


@pytest.mark.everywhere
async def test_row_16_64_mib_through_standard_input(box: Any, sdk: Sdk) -> None:
    piece = b"0123456789abcde\n" * (MIB // 16)
    running = await sdk.start(box, "sha256sum", stdin=True, timeout=300)
    await sdk.stream_in(box, running.pid, [piece] * 64)
    await running.handle.close_stdin()
    assert (await running.result()).stdout.split()[0] == hashlib.sha256(piece * 64).hexdigest()


async def test_characters_are_never_cut(box: Any) -> None:
    text = "aä€🙂" * 50000
    await box.files.write("text", text)
    assert (await box.commands.run("cat text")).stdout == text
    slow = r"printf '\xf0\x9f'; sleep 0.1; printf '\x99\x82'"
    assert (await box.commands.run(slow)).stdout == "🙂"


async def test_a_signal_ends_it(box: Any) -> None:
    with pytest.raises(CommandExitException) as ended:
        await box.commands.run("kill -TERM $$; sleep 100")
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: terminated")


@pytest.mark.everywhere
async def test_a_server_goes_on_after_its_client_is_gone(box: Any, sdk: Sdk) -> None:
    await box.files.write("index.html", "served\n")
    started = await box.commands.run("nohup python3 -m http.server 8000 >/dev/null 2>&1 & echo $!")
    assert started.stdout.strip().isdigit()
    fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/').read())\" || true"
    other = await sdk.connect(box.sandbox_id)

    async def served() -> bool:
        ended = await other.commands.run(fetch)
        return "served" in ended.stdout

    await eventually(served, "the server answers")
    held = await box.commands.run("sleep 1000", background=True)
    await held.disconnect()
    assert held.pid in [process.pid for process in await other.commands.list()]


async def test_many_at_the_same_time(box: Any) -> None:
    ended = await asyncio.gather(*(box.commands.run(f"sleep 0.2; echo {number}") for number in range(12)))
    assert [result.stdout for result in ended] == [f"{number}\n" for number in range(12)]


async def test_one_that_says_much_to_nobody_is_not_held_up(box: Any) -> None:
    silent = await box.commands.run("yes | head -c 20000000; touch finished", background=True)
    await silent.disconnect()
    await eventually(lambda: box.files.exists("finished"), "it finishes though nobody reads")
