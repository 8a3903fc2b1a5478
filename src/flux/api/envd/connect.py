"""The Connect protocol in JSON: one message to one, one to a stream, a stream to one (spec: e2b, §4).

A frame of a stream is one byte of flags, four of length, and a message. The last frame of a stream that goes out has
``END`` set and tells whether there was an error; it is always sent.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import CancelScope, Lock, create_task_group, current_time, sleep_until
from starlette.requests import ClientDisconnect, Request

from flux.api.envd.call import Call
from flux.api.envd.errors import CONNECT_STATUSES, connect_error, json_reply
from flux.api.envd.methods import ClientStream, Message, Method, ServerStream, Unary
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

FRAME_BYTES_MAX = 4 * 1024 * 1024
COMPRESSED, END = 0x01, 0x02
UNARY_TYPE, STREAM_TYPE = "application/json", "application/connect+json"
KEEPALIVE_SECONDS = 90.0
_KEEPALIVE_SECONDS_MIN = 1
_TIMEOUT_DIGITS_MAX = 10
_FAULT = {"code": "internal", "message": "cannot answer: a fault of Flux; its log tells more"}
_HEADER = struct.Struct(">BI")


async def serve(method: Method, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one call of a method."""
    request = Request(scope, receive)
    refused = _refusal(request, STREAM_TYPE if isinstance(method, ServerStream | ClientStream) else UNARY_TYPE)
    if refused is not None:
        scope["state"]["outcome"] = refused[1]
        await _failure(*refused)(scope, receive, send)
        return
    seconds = _timeout_seconds(request)
    if seconds is not None:
        call = msgspec.structs.replace(call, deadline=current_time() + seconds)
    if isinstance(method, Unary):
        await _unary(method, call, request, send)
    else:
        await _Stream(method, call, request, send).run()


def _refusal(request: Request, media_type: str) -> tuple[int, str, str] | None:
    """Return status, code and message if a request is not one of this protocol."""
    if request.method != "POST":
        return 405, "unimplemented", f"cannot {request.method} that route: it takes POST"
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        return 415, "invalid_argument", f"cannot read {given[:80] or 'no content type'}: this call takes {media_type}"
    for name in ("content-encoding", "connect-content-encoding"):
        if request.headers.get(name, "identity").strip().lower() != "identity":
            return 501, "unimplemented", "cannot read a compressed request: send it with the encoding identity"
    return None


def _failure(status: int, code: str, message: str) -> Any:
    headers = {"allow": "POST"} if status == 405 else {"accept-post": f"{UNARY_TYPE}, {STREAM_TYPE}"}
    return json_reply(status, {"code": code, "message": message}, headers if status in (405, 415) else None)


def _timeout_seconds(request: Request) -> float | None:
    """Return how long the caller waits; what is no number of milliseconds is no bound."""
    text = request.headers.get("connect-timeout-ms", "")
    if not (text.isascii() and text.isdigit() and len(text) <= _TIMEOUT_DIGITS_MAX):
        return None
    return int(text) / 1000


def keepalive_seconds(request: Request) -> float:
    """Return how long a stream may be silent."""
    text = request.headers.get("keepalive-ping-interval", "")
    if not (text.isascii() and text.isdigit() and len(text) <= _TIMEOUT_DIGITS_MAX):
        return KEEPALIVE_SECONDS
    return min(float(max(int(text), _KEEPALIVE_SECONDS_MIN)), KEEPALIVE_SECONDS)


def _overdue() -> dict[str, str]:
    return {"code": "deadline_exceeded", "message": "cannot go on: the time that the caller gave is over"}


# One message to one


async def _unary(method: Unary, call: Call, request: Request, send: Send) -> None:
    replies: list[bytes] = []

    async def answer(body: bytes, scope: CancelScope) -> None:
        replies.append(msgspec.json.encode(await method.call(call, decode(body, method.request))))
        scope.cancel()

    try:
        with CancelScope(deadline=_deadline(call)):
            body = await _body(request)
            async with create_task_group() as group:
                group.start_soon(answer, body, group.cancel_scope)
                await until_hung_up(request)
    except Exception as raised:
        error = innermost(raised)
        if not isinstance(error, FluxError):
            raise error from None
        await _unary_error(request, send, connect_error(error), error.code.value)
        return
    if not replies:
        await _unary_error(request, send, _overdue(), "overdue")
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(replies[0])).encode("ascii"))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": replies[0], "more_body": False})


async def _unary_error(request: Request, send: Send, error: dict[str, str], outcome: str) -> None:
    request.scope["state"]["outcome"] = outcome
    await json_reply(CONNECT_STATUSES[error["code"]], error)(request.scope, request.receive, send)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > FRAME_BYTES_MAX:
            raise _too_large()
        body += chunk
    return bytes(body)


def _deadline(call: Call) -> float:
    return float("inf") if call.deadline is None else call.deadline


def decode(data: bytes, shape: type[Any]) -> Any:
    """Return a message; an empty body is one with nothing set.

    Raises:
        FluxError: ``invalid``.
    """
    try:
        return msgspec.json.decode(data or b"{}", type=shape)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise FluxError(Code.INVALID, f"cannot read the message: {str(error)[:200]}") from None


def _too_large() -> FluxError:
    return FluxError(
        Code.TOO_LARGE,
        f"cannot take a message of more than {FRAME_BYTES_MAX >> 20} MiB: send it in pieces",
        {"limit": FRAME_BYTES_MAX},
    )


# Streams


def frame(flags: int, data: bytes) -> bytes:
    """Return a frame of a stream."""
    return _HEADER.pack(flags, len(data)) + data


async def frames(request: Request) -> AsyncIterator[bytes]:
    """Yield the messages of a stream that comes in, each when it is asked for.

    Raises:
        FluxError: ``invalid`` for what is no stream of this protocol, ``too_large`` for too long a frame.
    """
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        while len(held) >= _HEADER.size:
            flags, length = _HEADER.unpack_from(held)
            if length > FRAME_BYTES_MAX:
                raise _too_large()
            if flags & COMPRESSED:
                raise FluxError(Code.INVALID, "cannot read a compressed frame: send it with the encoding identity")
            if len(held) < _HEADER.size + length:
                break
            data = bytes(held[_HEADER.size : _HEADER.size + length])
            del held[: _HEADER.size + length]
            if flags & END:
                return
            yield data
    if held:
        raise FluxError(Code.INVALID, "cannot read the stream: it ends within a frame")


class _Stream:
    """The reply to one call of which one side at least is a stream."""

    def __init__(self, method: ServerStream | ClientStream, call: Call, request: Request, send: Send) -> None:
        self._method = method
        self._call = call
        self._request = request
        self._send = send
        self._turn = Lock()
        self._begun = False
        self._silent_since: float | None = None

    async def run(self) -> None:
        """Answer, and end the stream whatever happens; hang up on the call when the caller hangs up.

        The reply begins when the request has been read: a client that hears of it earlier cuts its own request off.
        """
        ended: dict[str, Any] = {}
        fault: Exception | None = None
        try:
            with CancelScope(deadline=_deadline(self._call)) as bound:
                await self._answer()
            if bound.cancelled_caught:
                ended = {"error": self._told(_overdue(), "overdue")}
        except Exception as raised:
            error = innermost(raised)
            if isinstance(error, ClientDisconnect):
                self._request.scope["state"]["outcome"] = "aborted"
                return
            if isinstance(error, FluxError):
                ended = {"error": self._told(connect_error(error), error.code.value)}
            else:
                fault, ended = error, {"error": self._told(_FAULT, Code.INTERNAL.value)}
        await self._write(frame(END, msgspec.json.encode(ended)))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if fault is not None:
            raise fault

    def _told(self, error: dict[str, str], outcome: str) -> dict[str, str]:
        self._request.scope["state"]["outcome"] = outcome
        return error

    async def _answer(self) -> None:
        if isinstance(self._method, ClientStream):
            await self.emit(await self._method.call(self._call, self._messages()))
            return
        message = await self._only_message()
        async with create_task_group() as group:
            group.start_soon(until_hung_up, self._request)
            group.start_soon(self._keep_alive, self._method)
            await self._method.call(self._call, message, self.emit)
            group.cancel_scope.cancel()

    async def _messages(self) -> AsyncIterator[Any]:
        async for data in frames(self._request):
            yield decode(data, self._method.request)

    async def _only_message(self) -> Any:
        found = [message async for message in _at_most_two(self._messages())]
        if len(found) != 1:
            raise FluxError(Code.INVALID, f"cannot take {len(found) or 'no'} messages: this call takes one")
        return found[0]

    async def emit(self, message: Message) -> None:
        """Send a message of the stream."""
        async with self._turn:
            await self._write(frame(0, msgspec.json.encode(message)))
            self._silent_since = current_time()

    async def _write(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", STREAM_TYPE.encode("ascii"))]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self, method: ServerStream) -> None:
        """Send something at least so often, once the stream has begun."""
        seconds = keepalive_seconds(self._request)
        while True:
            began = current_time()
            await sleep_until((self._silent_since or began) + seconds)
            silent = self._silent_since
            if silent is not None and current_time() - silent >= seconds:
                await self.emit(method.keepalive())


async def _at_most_two(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    count = 0
    async for message in messages:
        yield message
        count += 1
        if count == 2:
            return


async def until_hung_up(request: Request) -> None:
    """Wait until the caller hangs up. Raises ``ClientDisconnect`` then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


def innermost(error: Exception) -> Exception:
    """Return the error that a group of tasks failed with."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
