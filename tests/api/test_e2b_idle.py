"""A connection to a port over which nothing passes is cut, and what then is told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from flux.api.e2b.exchange import exchange
from flux.core.errors import FluxError


def carried(answer: bytes) -> tuple[list[Any], BaseException]:
    """Carry a request to a server that sends an answer and then nothing; return what was told and how it failed."""
    sent: list[Any] = []
    near, far = socket.socketpair()
    far.sendall(answer)
    scope: Any = {
        "type": "http", "method": "GET", "scheme": "http", "raw_path": b"/", "query_string": b"",
        "headers": [(b"host", b"3000-sb1.boxes.test")],
    }  # fmt: skip

    async def run() -> None:
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await exchange(near, scope, receive, send, 0.05)

    with far, pytest.raises((FluxError, OSError, ExceptionGroup)) as caught:
        asyncio.run(run())
    return sent, caught.value


def test_silence_before_the_reply_is_an_error() -> None:
    sent, error = carried(b"")
    assert sent == []
    assert isinstance(error, FluxError)
    assert error.details["reason"] == "bad-reply"


def test_silence_within_the_reply_cuts_it_off() -> None:
    sent, error = carried(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert isinstance(error, ConnectionError)
