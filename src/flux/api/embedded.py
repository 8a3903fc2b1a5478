"""The client of an engine in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from flux.api import wire
from flux.api.calls import Arguments, Content
from flux.api.client import Ended, Query
from flux.api.operations import Operation, operation_named
from flux.core.errors import Code, FluxError
from flux.core.requests import Exec

if TYPE_CHECKING:
    from flux.control.platform import Platform
    from flux.core.access import Actor

CHUNK_BYTES = 1024 * 1024


class EmbeddedClient:
    """Implements ``Client`` over an engine.

    Args:
        platform: what answers.
        actor: who calls.
        release: called once by ``close``; closes the engine and gives the state directory back.
    """

    def __init__(self, platform: Platform, actor: Actor, release: Callable[[], None] | None = None) -> None:
        self._platform = platform
        self._actor = actor
        self._release = release

    def call(
        self,
        operation: str,
        *,
        body: msgspec.Struct | None = None,
        query: Query | None = None,
        idempotency_key: str | None = None,
        **path: str,
    ) -> Any:
        """Call an operation that answers with JSON and return the decoded reply."""
        row = operation_named(operation)
        wire.require_one_reply(body)
        arguments = self._arguments(row, path, query, body=body, idempotency_key=idempotency_key)
        return msgspec.json.decode(wire.encode_reply(row.call(self._platform, self._actor, arguments)))

    def download(self, operation: str, target: BinaryIO, *, query: Query | None = None, **path: str) -> int:
        """Call an operation that answers with bytes and write them to ``target``."""
        row = operation_named(operation)
        content: Content = row.call(self._platform, self._actor, self._arguments(row, path, query))
        try:
            return _copy(content.descriptor, target)
        finally:
            os.close(content.descriptor)

    def upload(self, operation: str, source: BinaryIO, *, query: Query | None = None, **path: str) -> Any:
        """Call an operation that takes bytes, read from ``source`` to its end."""
        row = operation_named(operation)
        arguments = self._arguments(row, path, query, upload=_chunks(source))
        return msgspec.json.decode(wire.encode_reply(row.call(self._platform, self._actor, arguments)))

    def _arguments(self, row: Operation, path: Mapping[str, str], query: Query | None, **more: Any) -> Arguments:
        """Send a call's parts through their wire forms, so that they are checked as a daemon would."""
        body = wire.decode_body(row, wire.encode_body(more.pop("body", None)))
        asked = wire.decode_query(row, wire.encode_query(query).encode("ascii"))
        return Arguments(path=path, query=asked, body=body, **more)

    def run(
        self,
        sandbox: str,
        request: Exec,
        *,
        stdin: int | None,
        stdout: int,
        stderr: int,
        terminal: bool = False,
    ) -> Ended:
        """Run a command and carry its streams."""
        from flux.api.console import raw, size_of, watching_size
        from flux.api.pump import Pump
        from flux.engine.results import TerminalSize

        def size_told(rows: int, columns: int) -> None:
            running.resize(TerminalSize(rows=rows, columns=columns))

        rows, columns = size_of(stdout)
        size = TerminalSize(rows=rows, columns=columns) if terminal else None
        running = self._platform.start_exec(self._actor, sandbox, request, terminal=size)
        try:
            with raw(stdin if terminal else None), watching_size(stdout, size_told):
                ended = Pump(running, stdin, stdout, stderr).run()
        finally:
            running.close()
        if ended is None:
            raise FluxError(Code.UNAVAILABLE, "cannot tell how the command ended: its sandbox ended with it")
        return Ended(**msgspec.structs.asdict(ended))

    def read_file(self, sandbox: str, path: str, target: BinaryIO) -> int:
        """Copy a file out of a sandbox."""
        return self.download("files.read", target, query={"path": path}, sandbox=sandbox)

    def write_file(self, sandbox: str, path: str, source: BinaryIO, mode: int | None = None) -> Any:
        """Copy ``source`` into a file of a sandbox."""
        query = {"path": path, "mode": None if mode is None else f"{mode:04o}"}
        return self.upload("files.write", source, query=query, sandbox=sandbox)

    def close(self) -> None:
        """Close the platform, if that was handed over. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


def _copy(descriptor: int, target: BinaryIO) -> int:
    size = 0
    while data := os.read(descriptor, CHUNK_BYTES):
        target.write(data)
        size += len(data)
    return size


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while data := source.read(CHUNK_BYTES):
        yield data
