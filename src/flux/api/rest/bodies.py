"""Reading request bodies within bounds and writing replies without a second copy in memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

from anyio import from_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from flux.api import wire
from flux.api.calls import Content
from flux.api.rest.errors import status_of
from flux.core import paths
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.rest.threads import Threads

KIB = 1024
MIB = 1024 * KIB
BODY_BYTES_MAX = 4 * MIB
#: The body of an exec may carry the command's input: 64 MiB of it, in base64, and room for the rest.
EXEC_BODY_BYTES_MAX = 96 * MIB
CHUNK_BYTES = 256 * KIB
_WHOLE_BYTES_MAX = MIB


async def read_body(request: Request, limit: int) -> bytes:
    """Return the whole body.

    Raises:
        FluxError: ``too_large`` before more than ``limit`` bytes are held.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> FluxError:
    return FluxError(
        Code.TOO_LARGE,
        f"cannot read the request: its body is larger than {limit} bytes; send files with PUT …/files",
        {"limit_bytes": limit},
    )


def upload(request: Request) -> Iterator[bytes]:
    """Yield the body's bytes to a worker thread as they come; the sender waits meanwhile.

    Raises:
        FluxError: ``invalid`` if the sender hangs up before the end, so that half a file is never taken for a whole.
    """
    chunks = request.stream()

    async def following() -> bytes | None:
        return await anext(chunks, None)

    try:
        while (chunk := from_thread.run(following)) is not None:
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise FluxError(Code.INVALID, "cannot write the file: the sender hung up before its end") from None


def json_reply(body: bytes, status: int) -> Response:
    """Return a reply of JSON; a large one leaves in pieces, as fast as the caller reads."""
    if len(body) <= _WHOLE_BYTES_MAX:
        return Response(body, status, media_type="application/json")
    headers = {"content-length": str(len(body))}
    return StreamingResponse(_pieces(body), status, headers, media_type="application/json")


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(body), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def error_reply(error: FluxError) -> Response:
    """Return the reply that tells an error."""
    status = status_of(error)
    return Response(wire.encode_error(error), status, _headers(error, status), media_type="application/json")


def _headers(error: FluxError, status: int) -> dict[str, str] | None:
    if status == 401:
        return {"www-authenticate": "Bearer"}
    if status in (429, 503):
        return {"retry-after": str(error.details.get("retry_after_seconds", 1))}
    return None


class ContentReply(Response):
    """A reply of bytes from a descriptor, which it closes, whatever becomes of the caller."""

    def __init__(self, content: Content, threads: Threads) -> None:
        self._content = content
        self._threads = threads
        self.status_code = 200
        self.background = None
        headers = {
            "content-length": str(content.size),
            "content-type": content.media_type,
            "content-disposition": _disposition(content.name),
        }
        if content.mode is not None:
            headers["x-flux-mode"] = f"{content.mode:04o}"
        self.raw_headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the bytes as fast as the caller reads them."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            left = 0 if scope["method"] == "HEAD" else self._content.size
            while left > 0:
                data = await self._threads.quick(os.read, self._content.descriptor, min(CHUNK_BYTES, left))
                if not data:
                    raise ConnectionError("the file became shorter while it was sent")
                left -= len(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            os.close(self._content.descriptor)


def _disposition(name: str) -> str:
    exact = quote_from_bytes(paths.to_bytes(name), safe="")
    return f"attachment; filename*=UTF-8''{exact}"
