"""The public SDK twice under one face: every call is awaited, whether its own client is asynchronous or not.

The synchronous client is called in threads, so that a test may do two things at the same time with either. What the two
do not share (callbacks given to a start or to a wait, watches that push or are asked) is in ``Sdk``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from e2b import AsyncSandbox, PtySize, Sandbox

SECONDS_MAX = 60.0


class Awaited:
    """Something of the synchronous SDK whose every call is made in a thread and awaited."""

    def __init__(self, target: Any, pool: ThreadPoolExecutor) -> None:
        self.target = target
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        return partial(self._call, found) if inspect.isroutine(found) else self._wrapped(found)

    async def _call(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        act = partial(action, *arguments, **options)
        return self._wrapped(await asyncio.get_running_loop().run_in_executor(self._pool, act))

    def _wrapped(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._wrapped(item) for item in found]
        is_sdk = type(found).__module__.startswith("e2b.sandbox_sync")
        return Awaited(found, self._pool) if is_sdk else found


@dataclass
class Output:
    """What a command said so far; ``said`` waits for more."""

    stdout: str = ""
    stderr: str = ""
    pty: bytes = b""
    parts: list[str | bytes] = field(default_factory=list)

    def on_stdout(self, text: str) -> None:
        self.stdout += text
        self.parts.append(text)

    def on_stderr(self, text: str) -> None:
        self.stderr += text
        self.parts.append(text)

    def on_pty(self, data: bytes) -> None:
        self.pty += data
        self.parts.append(data)

    async def said(self, what: str | bytes) -> None:
        """Wait until it said something, on any of its streams."""
        if isinstance(what, bytes):
            await eventually(lambda: what in self.pty, f"{what!r} in {self.pty!r}")
        else:
            await eventually(lambda: what in self.stdout or what in self.stderr, f"{what!r} is said")


async def eventually(met: Callable[[], Any], what: str, seconds: float = SECONDS_MAX) -> Any:
    """Return the first true thing that ``met``, a function or a coroutine function, says."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = met()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        raise AssertionError(f"it never came to this: {what}") from None


class Running:
    """A command or a terminal that runs in the background; what it says is read all the time."""

    def __init__(self, handle: Any, output: Output, ended: asyncio.Task[Any]) -> None:
        self.handle = handle
        self.pid: int = handle.pid
        self.output = output
        self.ended = ended

    async def result(self) -> Any:
        """Wait for its end, and return or raise what the SDK does."""
        return await asyncio.wait_for(asyncio.shield(self.ended), SECONDS_MAX)


class Watch:
    """What happens in a directory: events as ``(type, name)``."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.handle: Any = None

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Every event so far."""
        return [(event.type.value, event.name) for event in self.events]

    async def until(self, *wanted: tuple[str, str]) -> None:
        """Wait until all of these were seen."""

        async def met() -> bool:
            await self._ask()
            return set(wanted) <= set(self.seen)

        try:
            await eventually(met, f"events {wanted}", 20)
        except AssertionError as error:
            raise AssertionError(f"{error}; there were {self.seen}") from None

    async def _ask(self) -> None:
        if isinstance(self.handle, Awaited):
            self.events += await self.handle.get_new_events()

    async def stop(self) -> None:
        """Watch no longer."""
        await self.handle.stop()


class Sdk:
    """One of the two clients. ``name``: ``sync`` or ``async``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "async"
        self._pool = ThreadPoolExecutor(24)
        self._sandbox: Any = AsyncSandbox if self.is_async else Awaited(Sandbox, self._pool)
        self._tasks: list[asyncio.Task[Any]] = []

    def __getattr__(self, name: str) -> Any:
        """Give a class method of ``Sandbox``: ``create``, ``connect``, ``kill``, ``get_info`` …"""
        found = getattr(self._sandbox if self.is_async else self._sandbox.target, name)
        return found if self.is_async else partial(self._sandbox._call, found)

    def listed(self, **options: Any) -> Any:
        """Return the paginator of sandboxes."""
        return AsyncSandbox.list(**options) if self.is_async else Awaited(Sandbox.list(**options), self._pool)

    def snapshots(self, **options: Any) -> Any:
        """Return the paginator of snapshots."""
        if self.is_async:
            return AsyncSandbox.list_snapshots(**options)
        return Awaited(Sandbox.list_snapshots(**options), self._pool)

    async def all_of(self, paginator: Any) -> list[Any]:
        """Return everything that a paginator has, page after page."""
        found = await paginator.next_items()
        while paginator.has_next:
            found += await paginator.next_items()
        return found

    async def start(self, box: Any, command: str, **options: Any) -> Running:
        """Start a command in the background and read what it says."""
        output = Output()
        if self.is_async:
            options |= {"on_stdout": output.on_stdout, "on_stderr": output.on_stderr}
        handle = await box.commands.run(command, background=True, **options)
        return self._running(handle, output)

    async def attach(self, box: Any, pid: int, **options: Any) -> Running:
        """Connect to a command that runs, and read what it says."""
        output = Output()
        if self.is_async:
            options |= {"on_stdout": output.on_stdout, "on_stderr": output.on_stderr}
        return self._running(await box.commands.connect(pid, **options), output)

    async def terminal(self, box: Any, rows: int = 24, cols: int = 80, **options: Any) -> Running:
        """Open a terminal and read what it says."""
        output = Output()
        if self.is_async:
            options["on_data"] = output.on_pty
        return self._running(await box.pty.create(PtySize(rows=rows, cols=cols), **options), output)

    async def attach_terminal(self, box: Any, pid: int) -> Running:
        """Connect to a terminal that is there."""
        output = Output()
        options = {"on_data": output.on_pty} if self.is_async else {}
        return self._running(await box.pty.connect(pid, **options), output)

    def _running(self, handle: Any, output: Output) -> Running:
        reading: Awaitable[Any] = handle.wait()
        if not self.is_async:
            reading.close()  # type: ignore[attr-defined]  # a generator is one
            reading = handle.wait(on_pty=output.on_pty, on_stdout=output.on_stdout, on_stderr=output.on_stderr)
        ended = asyncio.ensure_future(reading)
        self._tasks.append(ended)
        return Running(handle, output, ended)

    async def watch(self, box: Any, path: str, **options: Any) -> Watch:
        """Watch a directory."""
        made = Watch()
        if self.is_async:
            options["on_event"] = made.events.append
        made.handle = await box.files.watch_dir(path, **options)
        return made

    def url(self, box: Any, operation: str, path: str, **options: Any) -> str:
        """Return a signed URL. ``operation``: ``download_url`` or ``upload_url``, which ask nobody."""
        made: str = getattr(box if self.is_async else box.target, operation)(path, **options)
        return made

    async def chunks(self, stream: Any) -> AsyncIterator[bytes]:
        """Yield what a streamed download brings."""
        if self.is_async:
            async for chunk in stream:
                yield chunk
            return
        loop, source = asyncio.get_running_loop(), iter(stream)
        while (chunk := await loop.run_in_executor(self._pool, next, source, None)) is not None:
            yield chunk

    def feed(self, chunks: list[bytes]) -> Any:
        """Return the kind of iterable that this client takes for an upload."""

        async def pushed() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        return pushed() if self.is_async else iter(chunks)

    async def stream_in(self, box: Any, pid: int, chunks: list[bytes]) -> None:
        """Send input to a command as one stream."""
        if not self.is_async:
            await box.commands.stream_input(pid, chunks)
            return
        async with box.commands.stream_input(pid) as stream:
            for chunk in chunks:
                await stream.send(chunk)

    async def close(self) -> None:
        """Let go whatever a failed test left waiting."""
        for task in self._tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
