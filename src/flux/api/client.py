"""What every caller of Flux's operations sees, whether the engine is in this process or behind a daemon.

``EmbeddedClient`` (``api.embedded``) and ``HttpClient`` (``api.http``) answer the same calls with the same JSON: both
take operations, parameters and shapes from ``api.operations``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol, TypeAlias

import msgspec

from flux.core.requests import Exec

Query: TypeAlias = Mapping[str, str | int | float | Sequence[str] | None]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a streamed command ended: exactly one of ``exit_code`` and ``signal`` is set. ``duration_ms`` in ms."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    duration_ms: int = 0


class Client(Protocol):
    """One way to reach an engine. Every method raises ``FluxError`` with the code that the engine gave.

    Path parameters are keyword arguments named as in the route: ``sandbox``, ``changeset``, ``key``, ``path``. Names
    of files are in the lossless text form of ``core.paths``.
    """

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
        ...

    def download(self, operation: str, target: BinaryIO, *, query: Query | None = None, **path: str) -> int:
        """Call an operation that answers with bytes, write them to ``target`` as they come, return how many."""
        ...

    def upload(self, operation: str, source: BinaryIO, *, query: Query | None = None, **path: str) -> Any:
        """Call an operation that takes bytes, read from ``source`` to its end, and return the decoded reply."""
        ...

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
        """Run a command and carry its streams from and to descriptors of the caller.

        Args:
            sandbox: the sandbox's id.
            request: the command; its own ``stdin`` fields are not used.
            stdin: where the command's input is read from; ``None`` gives it an empty one.
            stdout: where its output is written.
            stderr: where its error output is written; a terminal has only one output.
            terminal: give the command a terminal; the caller's one at ``stdin`` is put into raw mode meanwhile, and
                its size and changes of size are passed on.
        """
        ...

    def read_file(self, sandbox: str, path: str, target: BinaryIO) -> int:
        """Copy a file out of a sandbox into ``target`` and return its size in bytes."""
        ...

    def write_file(self, sandbox: str, path: str, source: BinaryIO, mode: int | None = None) -> Any:
        """Copy ``source`` into a file of a sandbox, replacing it as a whole; without a ``mode`` it keeps its own."""
        ...

    def close(self) -> None:
        """Release what the client holds. Idempotent."""
        ...
