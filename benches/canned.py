"""A server with canned replies for the public SDK: what its calls cost when nobody does anything for them.

``python -m benches.canned`` listens on a port of the kernel's choice, says which, and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

LARGE_BYTES = 64 << 20
SMALL_BYTES = 1 << 10
_SANDBOX = {
    "templateID": "base",
    "sandboxID": "canned",
    "clientID": "canned",
    "envdVersion": "0.6.13",
    "envdAccessToken": "canned",
    "domain": None,
}
_EVENTS = (
    {"event": {"start": {"pid": 1}}},
    {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}},
)
_LARGE = bytes(LARGE_BYTES)


def _frame(flags: int, message: object) -> bytes:
    text = json.dumps(message).encode()
    return bytes([flags]) + len(text).to_bytes(4, "big") + text


def reply(method: str, path: str) -> tuple[int, str, bytes]:
    """Return status, type and body of the answer to a request."""
    place, _, query = path.partition("?")
    if place.startswith("/process.Process/"):
        return 200, "application/connect+json", b"".join(_frame(0, each) for each in _EVENTS) + _frame(2, {})
    if place == "/files" and method == "GET":
        return 200, "application/octet-stream", _LARGE if "large" in query else _LARGE[:SMALL_BYTES]
    if place == "/files":
        return 200, "application/json", json.dumps([{"path": "/tmp/x", "name": "x", "type": "file"}]).encode()
    if method == "DELETE" or place.endswith("/pause"):
        return 204, "application/json", b""
    return 201, "application/json", json.dumps(_SANDBOX).encode()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            await _skip(reader, headers)
            status, kind, body = reply(method, path)
            length = "" if status == 204 else f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"HTTP/1.1 {status} OK\r\n{length}\r\n".encode())
            writer.write(body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _skip(reader: asyncio.StreamReader, headers: dict[str, str]) -> None:
    """Read a request's body, whichever way it comes."""
    if headers.get("transfer-encoding", "") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readline()
        return
    left = int(headers.get("content-length", 0))
    while left:
        left -= len(await reader.read(min(left, 1 << 20))) or left


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
